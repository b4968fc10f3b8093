; What of the pool depends on the machine: AArch64.

define internal void @pause() alwaysinline {
  call void @llvm.aarch64.hint(i32 1)
  ret void
}

; FPCR: rounding, and what becomes of denormal numbers.
define internal i32 @control() alwaysinline {
  %value = call i64 @llvm.aarch64.get.fpcr()
  %low = trunc i64 %value to i32
  ret i32 %low
}

define internal void @set_control(i32 %value) alwaysinline {
  %long = zext i32 %value to i64
  call void @llvm.aarch64.set.fpcr(i64 %long)
  ret void
}

define internal i64 @futex(ptr %word, i64 %operation, i64 %value) {
  %result = call i64 (i64, ...) @syscall(i64 98, ptr %word, i64 %operation, i64 %value, ptr null, ptr null, i64 0)
  ret i64 %result
}

declare void @llvm.aarch64.hint(i32)
declare i64 @llvm.aarch64.get.fpcr()
declare void @llvm.aarch64.set.fpcr(i64)
