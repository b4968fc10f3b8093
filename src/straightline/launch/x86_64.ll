; What of the pool depends on the machine: x86-64.

define internal void @pause() alwaysinline {
  call void @llvm.x86.sse2.pause()
  ret void
}

; MXCSR: rounding, and what becomes of denormal numbers.
define internal i32 @control() alwaysinline {
  %slot = alloca i32
  call void @llvm.x86.sse.stmxcsr(ptr %slot)
  %value = load i32, ptr %slot
  ret i32 %value
}

define internal void @set_control(i32 %value) alwaysinline {
  %slot = alloca i32
  store i32 %value, ptr %slot
  call void @llvm.x86.sse.ldmxcsr(ptr %slot)
  ret void
}

define internal i64 @futex(ptr %word, i64 %operation, i64 %value) {
  %result = call i64 (i64, ...) @syscall(i64 202, ptr %word, i64 %operation, i64 %value, ptr null, ptr null, i64 0)
  ret i64 %result
}

declare void @llvm.x86.sse2.pause()
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)
