; The launcher: builtins of every kernel are this code. `self` is a bytes object, whose words say
; which kernel it is and what its arguments have to be (see descriptor.py).

; DLTensor of dlpack.h: data, {device type, id}, {ndim, dtype code, bits, lanes}, shape, strides,
; byte offset.
%tensor = type { ptr, i64, i64, ptr, ptr, i64 }

; The first words, `descriptor.HEADER`; {i64 type, {i64 size, i64 stride} for each dimension} for
; each tensor follow.
%header = type { ptr, i64, i64, i64, i64, double, i64, i64, i64 }

declare ptr @PyBytes_AsString(ptr)
declare i64 @PyLong_AsLongLong(ptr)
declare ptr @PyLong_FromLongLong(i64)
declare ptr @PyErr_Occurred()
declare void @PyErr_Clear()
declare void @Py_IncRef(ptr)
declare void @Py_DecRef(ptr)
declare ptr @PyObject_Vectorcall(ptr, ptr, i64, ptr)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare i32 @dltensor_from_py_object(ptr, ptr)
; Whether an at::Tensor stands for the negative of what lies in its memory; DLPack does not tell.
declare i8 @is_negated(ptr)
; What torch.get_num_threads() says.
declare i32 @threads()

; Python's: None, and the functions mismatch(self, *args), failed(self, status) and make_pool().
@objects = global [4 x ptr] zeroinitializer
; Where the at::Tensor lies in Python's.
@handle = global i64 0
; @parallel of pool.ll, once there is a pool.
@pool = global ptr null

; Estimated nanoseconds of work that are worth a thread, and that are worth to release the GIL.
@worth_a_thread = global double 2.0e+03
@worth_a_release = global double 1.0e+04

; A word that stands for a number: the number doubled, or the place of a fact doubled and one more.
define internal i64 @number(i64 %word, ptr %facts) alwaysinline {
  %value = ashr i64 %word, 1
  %is_fact = trunc i64 %word to i1
  br i1 %is_fact, label %fact, label %done
fact:
  %at = getelementptr i64, ptr %facts, i64 %value
  %told = load i64, ptr %at
  br label %done
done:
  %number = phi i64 [ %value, %0 ], [ %told, %fact ]
  ret i64 %number
}

; The integers among the arguments; false: one is none, and Python's error is set.
define internal i1 @read_integers(ptr %args, i64 %count, ptr %facts) alwaysinline {
entry:
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %next, %read ]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %one, label %good
one:
  %arg = getelementptr ptr, ptr %args, i64 %i
  %object = load ptr, ptr %arg
  %value = call i64 @PyLong_AsLongLong(ptr %object)
  %suspicious = icmp eq i64 %value, -1
  br i1 %suspicious, label %ask, label %read, !prof !0
ask:
  %error = call ptr @PyErr_Occurred()
  %bad = icmp ne ptr %error, null
  br i1 %bad, label %wrong, label %read
read:
  %fact = getelementptr i64, ptr %facts, i64 %i
  store i64 %value, ptr %fact
  %next = add i64 %i, 1
  br label %head
good:
  ret i1 true
wrong:
  ret i1 false
}

; Whether a CPU tensor has the sizes and strides in `words`, and memory unless it is empty.
define internal i1 @agrees(ptr %tensor, ptr %words, i64 %rank, ptr %facts) alwaysinline {
entry:
  %shape_at = getelementptr %tensor, ptr %tensor, i64 0, i32 3
  %shape = load ptr, ptr %shape_at
  %strides_at = getelementptr %tensor, ptr %tensor, i64 0, i32 4
  %strides = load ptr, ptr %strides_at
  br label %head
head:
  %d = phi i64 [ 0, %entry ], [ %next, %sized ]
  %empty = phi i1 [ false, %entry ], [ %empty_now, %sized ]
  %astride = phi i1 [ false, %entry ], [ %astride_now, %sized ]
  %more = icmp slt i64 %d, %rank
  br i1 %more, label %dimension, label %whole
dimension:
  %size_at = getelementptr i64, ptr %shape, i64 %d
  %size = load i64, ptr %size_at
  %pair = getelementptr [2 x i64], ptr %words, i64 %d
  %size_word = load i64, ptr %pair
  %wanted_size = call i64 @number(i64 %size_word, ptr %facts)
  %same_size = icmp eq i64 %size, %wanted_size
  br i1 %same_size, label %sized, label %no, !prof !1
sized:
  %stride_at = getelementptr i64, ptr %strides, i64 %d
  %stride = load i64, ptr %stride_at
  %stride_word_at = getelementptr [2 x i64], ptr %words, i64 %d, i64 1
  %stride_word = load i64, ptr %stride_word_at
  %wanted_stride = call i64 @number(i64 %stride_word, ptr %facts)
  %differs = icmp ne i64 %stride, %wanted_stride
  %several = icmp sgt i64 %size, 1
  %matters = and i1 %differs, %several
  %astride_now = or i1 %astride, %matters
  %is_zero = icmp eq i64 %size, 0
  %empty_now = or i1 %empty, %is_zero
  %next = add i64 %d, 1
  br label %head
whole:
  %data = load ptr, ptr %tensor
  %nowhere = icmp eq ptr %data, null
  %wrong = or i1 %astride, %nowhere
  %right = xor i1 %wrong, true
  %fine = or i1 %empty, %right
  ret i1 %fine
no:
  ret i1 false
}

; Runs a kernel, all of it here or in chunks by several threads; what the builtin returns.
define internal ptr @run(ptr %self, ptr %header, ptr %data, ptr %facts) {
entry:
  %code = load ptr, ptr %header
  %ranged_at = getelementptr %header, ptr %header, i64 0, i32 3
  %ranged = load i64, ptr %ranged_at
  %count_at = getelementptr %header, ptr %header, i64 0, i32 4
  %count_word = load i64, ptr %count_at
  %count = call i64 @number(i64 %count_word, ptr %facts)
  %cost_at = getelementptr %header, ptr %header, i64 0, i32 5
  %cost = load double, ptr %cost_at
  %times_at = getelementptr %header, ptr %header, i64 0, i32 6
  %times_word = load i64, ptr %times_at
  %times = call i64 @number(i64 %times_word, ptr %facts)
  %is_ranged = icmp ne i64 %ranged, 0
  %positions = select i1 %is_ranged, i64 %count, i64 1
  %none = icmp sle i64 %positions, 0
  br i1 %none, label %nothing, label %weigh
nothing:
  %empty = call ptr @conclude(ptr %self, i64 0)
  ret ptr %empty
weigh:
  %positions_real = sitofp i64 %positions to double
  %times_real = sitofp i64 %times to double
  %each = fmul double %cost, %times_real
  %work = fmul double %each, %positions_real
  %thread = load double, ptr @worth_a_thread
  %shares = fdiv double %work, %thread
  %shareable = fcmp oge double %shares, 2.0
  %spread = and i1 %is_ranged, %shareable
  br i1 %spread, label %ask, label %alone, !prof !0
ask:
  %allowed = call i32 @threads()
  %allowed_long = sext i32 %allowed to i64
  %bounded = call double @llvm.minnum.f64(double %shares, double 255.0)
  %useful = fptosi double %bounded to i64
  %team = call i64 @llvm.smin.i64(i64 %allowed_long, i64 %useful)
  %several = icmp sgt i64 %team, 1
  br i1 %several, label %cut, label %alone
cut:
  ; about four chunks a thread, of `grain` positions or more, in multiples of `step`
  %pieces = shl i64 %team, 2
  %above = add i64 %count, %pieces
  %above_less = sub i64 %above, 1
  %even = sdiv i64 %above_less, %pieces
  %grain_at = getelementptr %header, ptr %header, i64 0, i32 7
  %grain = load i64, ptr %grain_at
  %longer = call i64 @llvm.smax.i64(i64 %even, i64 %grain)
  %step_at = getelementptr %header, ptr %header, i64 0, i32 8
  %step = load i64, ptr %step_at
  %step_less = sub i64 %step, 1
  %over = add i64 %longer, %step_less
  %steps = sdiv i64 %over, %step
  %length = mul i64 %steps, %step
  %count_over = add i64 %count, %length
  %count_less = sub i64 %count_over, 1
  %chunks = sdiv i64 %count_less, %length
  %split = icmp sgt i64 %chunks, 1
  %pool = load ptr, ptr @pool
  %lacking = icmp eq ptr %pool, null
  %needed = and i1 %split, %lacking
  br i1 %needed, label %make, label %share, !prof !0
make:
  %make_pool_at = getelementptr ptr, ptr @objects, i64 3
  %make_pool = load ptr, ptr %make_pool_at
  %made = call ptr @PyObject_Vectorcall(ptr %make_pool, ptr null, i64 0, ptr null)
  %there = icmp ne ptr %made, null
  br i1 %there, label %ready, label %error
ready:
  call void @Py_DecRef(ptr %made)
  br label %share
error:
  ret ptr null
share:
  %threads = select i1 %split, i64 %team, i64 1
  br label %alone
alone:
  %by = phi i64 [ 1, %weigh ], [ 1, %ask ], [ %threads, %share ]
  %in = phi i64 [ 1, %weigh ], [ 1, %ask ], [ %chunks, %share ]
  %of = phi i64 [ 1, %weigh ], [ 1, %ask ], [ %length, %share ]
  %end = select i1 %is_ranged, i64 %count, i64 0
  %release = load double, ptr @worth_a_release
  %long = fcmp oge double %work, %release
  br i1 %long, label %freely, label %briefly, !prof !0
freely:
  %state = call ptr @PyEval_SaveThread()
  %late = call i64 @compute(ptr %code, ptr %data, ptr %facts, i64 %end, i64 %of, i64 %in, i64 %by, double %work)
  call void @PyEval_RestoreThread(ptr %state)
  %concluded = call ptr @conclude(ptr %self, i64 %late)
  ret ptr %concluded
briefly:
  %soon = call i64 @compute(ptr %code, ptr %data, ptr %facts, i64 %end, i64 %of, i64 %in, i64 %by, double %work)
  %result = call ptr @conclude(ptr %self, i64 %soon)
  ret ptr %result
}

define internal i64 @compute(ptr %code, ptr %data, ptr %facts, i64 %end, i64 %length, i64 %chunks, i64 %threads, double %work) alwaysinline {
  %shared = icmp sgt i64 %threads, 1
  br i1 %shared, label %together, label %alone, !prof !0
together:
  %pool = load ptr, ptr @pool
  ; a second at most, which is more than all thresholds
  %second = call double @llvm.minnum.f64(double %work, double 1.0e+09)
  %estimate = fptosi double %second to i64
  %many = call i64 %pool(ptr %code, ptr %data, ptr %facts, i64 %end, i64 %length, i64 %chunks, i64 %threads, i64 %estimate)
  ret i64 %many
alone:
  %one = call i64 %code(ptr %data, ptr %facts, i64 0, i64 %end)
  ret i64 %one
}

; function(self, *args)
define internal ptr @hand_over(ptr %function, ptr %self, ptr %args, i64 %given) noinline {
entry:
  %all = add i64 %given, 1
  %copy = alloca ptr, i64 %all
  store ptr %self, ptr %copy
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %next, %one ]
  %next = add i64 %i, 1
  %more = icmp slt i64 %i, %given
  br i1 %more, label %one, label %call
one:
  %from = getelementptr ptr, ptr %args, i64 %i
  %object = load ptr, ptr %from
  %to = getelementptr ptr, ptr %copy, i64 %next
  store ptr %object, ptr %to
  br label %head
call:
  %result = call ptr @PyObject_Vectorcall(ptr %function, ptr %copy, i64 %all, ptr null)
  ret ptr %result
}

; None, or the error that `failed` raises.
define internal ptr @conclude(ptr %self, i64 %status) alwaysinline {
  %fine = icmp eq i64 %status, 0
  br i1 %fine, label %good, label %bad, !prof !1
good:
  %none = load ptr, ptr @objects
  call void @Py_IncRef(ptr %none)
  ret ptr %none
bad:
  %number = call ptr @PyLong_FromLongLong(i64 %status)
  %made = icmp ne ptr %number, null
  br i1 %made, label %report, label %raised
report:
  %slot = alloca ptr
  store ptr %number, ptr %slot
  %failed_at = getelementptr ptr, ptr @objects, i64 2
  %failed = load ptr, ptr %failed_at
  %result = call ptr @hand_over(ptr %failed, ptr %self, ptr %slot, i64 1)
  call void @Py_DecRef(ptr %number)
  ret ptr %result
raised:
  ret ptr null
}

; The builtin: tensors, then integers.
define ptr @launch(ptr %self, ptr %args, i64 %given) {
entry:
  %header = call ptr @PyBytes_AsString(ptr %self)
  %tensors_at = getelementptr %header, ptr %header, i64 0, i32 1
  %tensors = load i64, ptr %tensors_at
  %integers_at = getelementptr %header, ptr %header, i64 0, i32 2
  %integers = load i64, ptr %integers_at
  %wanted = add i64 %tensors, %integers
  %tensor = alloca %tensor
  %facts = alloca i64, i64 %integers
  %data = alloca ptr, i64 %tensors
  %complete = icmp eq i64 %given, %wanted
  br i1 %complete, label %read, label %mismatch, !prof !1
read:
  %behind = getelementptr ptr, ptr %args, i64 %tensors
  %good = call i1 @read_integers(ptr %behind, i64 %integers, ptr %facts)
  br i1 %good, label %start, label %error, !prof !1
start:
  %first = getelementptr %header, ptr %header, i64 1
  br label %head
head:
  %t = phi i64 [ 0, %start ], [ %t_next, %next ]
  %words = phi ptr [ %first, %start ], [ %words_next, %next ]
  %more = icmp slt i64 %t, %tensors
  br i1 %more, label %one, label %go
one:
  %arg = getelementptr ptr, ptr %args, i64 %t
  %object = load ptr, ptr %arg
  %refused = call i32 @dltensor_from_py_object(ptr %object, ptr %tensor)
  %taken = icmp eq i32 %refused, 0
  br i1 %taken, label %taken_in, label %refusal, !prof !1
taken_in:
  %device_at = getelementptr %tensor, ptr %tensor, i64 0, i32 1
  %device = load i64, ptr %device_at
  %on_cpu = icmp eq i64 %device, 1
  %type_at = getelementptr %tensor, ptr %tensor, i64 0, i32 2
  %type = load i64, ptr %type_at
  %wanted_type = load i64, ptr %words
  %same_type = icmp eq i64 %type, %wanted_type
  %alike = and i1 %on_cpu, %same_type
  br i1 %alike, label %layout, label %mismatch, !prof !1
layout:
  %rank = and i64 %type, 4294967295
  %dimensions = getelementptr i64, ptr %words, i64 1
  %agreed = call i1 @agrees(ptr %tensor, ptr %dimensions, i64 %rank, ptr %facts)
  br i1 %agreed, label %sign, label %mismatch, !prof !1
sign:
  %offset_of_handle = load i64, ptr @handle
  %handle = getelementptr i8, ptr %object, i64 %offset_of_handle
  %told = call i8 @is_negated(ptr %handle)
  %negated = trunc i8 %told to i1
  br i1 %negated, label %mismatch, label %next, !prof !0
next:
  %base = load ptr, ptr %tensor
  %offset_at = getelementptr %tensor, ptr %tensor, i64 0, i32 5
  %offset = load i64, ptr %offset_at
  %memory = getelementptr i8, ptr %base, i64 %offset
  %slot = getelementptr ptr, ptr %data, i64 %t
  store ptr %memory, ptr %slot
  %t_next = add i64 %t, 1
  %words_next = getelementptr [2 x i64], ptr %dimensions, i64 %rank
  br label %head
go:
  %result = call ptr @run(ptr %self, ptr %header, ptr %data, ptr %facts)
  ret ptr %result
refusal:
  call void @PyErr_Clear()
  br label %mismatch
mismatch:
  %mismatch_at = getelementptr ptr, ptr @objects, i64 1
  %function = load ptr, ptr %mismatch_at
  %answer = call ptr @hand_over(ptr %function, ptr %self, ptr %args, i64 %given)
  ret ptr %answer
error:
  ret ptr null
}

; The builtin for arguments that have been checked: addresses of memory, then integers.
define ptr @launch_addresses(ptr %self, ptr %args, i64 %given) {
entry:
  %header = call ptr @PyBytes_AsString(ptr %self)
  %tensors_at = getelementptr %header, ptr %header, i64 0, i32 1
  %tensors = load i64, ptr %tensors_at
  %numbers = alloca i64, i64 %given
  %good = call i1 @read_integers(ptr %args, i64 %given, ptr %numbers)
  br i1 %good, label %go, label %error, !prof !1
go:
  %facts = getelementptr i64, ptr %numbers, i64 %tensors
  %result = call ptr @run(ptr %self, ptr %header, ptr %numbers, ptr %facts)
  ret ptr %result
error:
  ret ptr null
}

declare double @llvm.minnum.f64(double, double)
declare i64 @llvm.smin.i64(i64, i64)
declare i64 @llvm.smax.i64(i64, i64)

!0 = !{!"branch_weights", i32 1, i32 1000}
!1 = !{!"branch_weights", i32 1000, i32 1}
