; The pool: threads that help a caller with one job at a time, a kernel cut into chunks.
;
; Who runs a chunk is settled by one word, the ticket:
;
;     generation (36 bits) | helpers allowed (8) | chunks (10) | next chunk (10)
;
; A chunk is claimed by exchanging the whole word, so that a claim on a job that is over fails. From
; a claim until `done` counts it, the caller waits and the job stands as it is. A helper that has
; claimed nothing is waited for by nobody.

%job = type { ptr, ptr, ptr, i64, i64, i32 }

@ticket = internal global i64 0, align 64
@done = internal global i64 0, align 64
; code, data, sizes, positions, positions of a chunk, the caller's floating-point control
@job = internal global %job zeroinitializer, align 64
; the lowest chunk that failed (-1: none), and the status of each that did
@worst = internal global i64 -1, align 64
@statuses = internal global [1024 x i64] zeroinitializer, align 64
; 1 while some caller has the pool
@taken = internal global i32 0, align 64
@helpers = internal global i64 0
; 1 where a helper sleeps
@beds = internal global [256 x [16 x i32]] zeroinitializer, align 64
; Nanoseconds that an idle helper looks for work before it sleeps.
@patience = global i64 20000
; What it has cost a caller to wake a helper of late: a microsecond or two, or a dozen where the
; machine is a virtual one.
@waking = global i64 5000

declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_detach(i64)
declare i32 @pthread_sigmask(i32, ptr, ptr)
declare i32 @clock_gettime(i32, ptr)
declare i32 @sched_yield()
declare i64 @syscall(i64, ...)

define internal i64 @now() {
  %time = alloca [2 x i64]
  %ignored = call i32 @clock_gettime(i32 1, ptr %time)
  %seconds = load i64, ptr %time
  %rest_at = getelementptr i64, ptr %time, i64 1
  %rest = load i64, ptr %rest_at
  %scaled = mul i64 %seconds, 1000000000
  %sum = add i64 %scaled, %rest
  ret i64 %sum
}

; The next chunk for helper number `me` (the caller: 0), or -1.
define internal i64 @claim(i64 %me) {
entry:
  %seen = load atomic i64, ptr @ticket acquire, align 8
  br label %look
look:
  %ticket = phi i64 [ %seen, %entry ], [ %newer, %try ]
  %open = call i1 @is_open(i64 %ticket, i64 %me)
  br i1 %open, label %try, label %none
try:
  %after = add i64 %ticket, 1
  %pair = cmpxchg ptr @ticket, i64 %ticket, i64 %after acq_rel acquire
  %newer = extractvalue { i64, i1 } %pair, 0
  %won = extractvalue { i64, i1 } %pair, 1
  br i1 %won, label %mine, label %look
mine:
  %chunk = and i64 %ticket, 1023
  ret i64 %chunk
none:
  ret i64 -1
}

; Whether a ticket has a chunk left that `me` may claim.
define internal i1 @is_open(i64 %ticket, i64 %me) alwaysinline {
  %next = and i64 %ticket, 1023
  %high = lshr i64 %ticket, 10
  %chunks = and i64 %high, 1023
  %higher = lshr i64 %ticket, 20
  %allowed = and i64 %higher, 255
  %left = icmp ult i64 %next, %chunks
  %invited = icmp ule i64 %me, %allowed
  %open = and i1 %left, %invited
  ret i1 %open
}

; Runs a chunk, unless one before it has failed: it is the lowest that counts.
define internal void @run_chunk(i64 %chunk) {
  %worst = load atomic i64, ptr @worst acquire, align 8
  %in_vain = icmp ult i64 %worst, %chunk
  br i1 %in_vain, label %over, label %run
run:
  %code = load ptr, ptr @job
  %data = load ptr, ptr getelementptr (%job, ptr @job, i64 0, i32 1)
  %sizes = load ptr, ptr getelementptr (%job, ptr @job, i64 0, i32 2)
  %count = load i64, ptr getelementptr (%job, ptr @job, i64 0, i32 3)
  %length = load i64, ptr getelementptr (%job, ptr @job, i64 0, i32 4)
  %low = mul i64 %chunk, %length
  %beyond = add i64 %low, %length
  %high = call i64 @llvm.smin.i64(i64 %beyond, i64 %count)
  %status = call i64 %code(ptr %data, ptr %sizes, i64 %low, i64 %high)
  %fine = icmp eq i64 %status, 0
  br i1 %fine, label %over, label %failed
failed:
  %at = getelementptr [1024 x i64], ptr @statuses, i64 0, i64 %chunk
  store i64 %status, ptr %at
  %before = atomicrmw umin ptr @worst, i64 %chunk release
  br label %over
over:
  ret void
}

; A job: every chunk once, each by whoever claims it; the status of the lowest chunk that failed.
; While another caller has the pool, this one runs all of its own. `estimate` is how many nanoseconds
; the job is thought to take: helpers sleep on if to wake one costs more than a quarter of that.
define i64 @parallel(ptr %code, ptr %data, ptr %sizes, i64 %count, i64 %length, i64 %chunks, i64 %threads, i64 %estimate) {
entry:
  %pair = cmpxchg ptr @taken, i32 0, i32 1 acquire monotonic
  %mine = extractvalue { i32, i1 } %pair, 1
  br i1 %mine, label %hire, label %alone
alone:
  %all = call i64 %code(ptr %data, ptr %sizes, i64 0, i64 %count)
  ret i64 %all

hire:
  %wanted = sub i64 %threads, 1
  call void @hire(i64 %wanted)
  store ptr %code, ptr @job
  store ptr %data, ptr getelementptr (%job, ptr @job, i64 0, i32 1)
  store ptr %sizes, ptr getelementptr (%job, ptr @job, i64 0, i32 2)
  store i64 %count, ptr getelementptr (%job, ptr @job, i64 0, i32 3)
  store i64 %length, ptr getelementptr (%job, ptr @job, i64 0, i32 4)
  %control = call i32 @control()
  store i32 %control, ptr getelementptr (%job, ptr @job, i64 0, i32 5)
  store atomic i64 0, ptr @done monotonic, align 8
  store atomic i64 -1, ptr @worst monotonic, align 8

  ; The first chunk is the caller's.
  %old = load atomic i64, ptr @ticket monotonic, align 8
  %old_generation = lshr i64 %old, 28
  %generation = add i64 %old_generation, 1
  %a = shl i64 %generation, 8
  %b = or i64 %a, %wanted
  %c = shl i64 %b, 10
  %d = or i64 %c, %chunks
  %e = shl i64 %d, 10
  %ticket = or i64 %e, 1
  store atomic i64 %ticket, ptr @ticket seq_cst, align 8

  %spare = sub i64 %chunks, 1
  %useful = call i64 @llvm.smin.i64(i64 %wanted, i64 %spare)
  %cost = load atomic i64, ptr @waking monotonic, align 8
  %due = shl i64 %cost, 2
  %worth_it = icmp sge i64 %estimate, %due
  br i1 %worth_it, label %waking, label %work
waking:
  %helper = phi i64 [ 1, %hire ], [ %helper_next, %wake ]
  %more = icmp sle i64 %helper, %useful
  br i1 %more, label %wake, label %work
wake:
  call void @wake(i64 %helper)
  %helper_next = add i64 %helper, 1
  br label %waking

work:
  %chunk = phi i64 [ 0, %hire ], [ 0, %waking ], [ %claimed, %work ]
  %own = phi i64 [ 1, %hire ], [ 1, %waking ], [ %own_next, %work ]
  call void @run_chunk(i64 %chunk)
  %claimed = call i64 @claim(i64 0)
  %own_next = add i64 %own, 1
  %again = icmp sge i64 %claimed, 0
  br i1 %again, label %work, label %wait

  ; Helpers have claimed the others. One may have been pushed off its core: after a while this
  ; thread offers its own.
wait:
  %theirs = sub i64 %chunks, %own
  br label %waiting
waiting:
  %turn = phi i64 [ 0, %wait ], [ %turn_next, %paused ]
  %done = load atomic i64, ptr @done acquire, align 8
  %complete = icmp eq i64 %done, %theirs
  br i1 %complete, label %finish, label %pausing
pausing:
  %turn_next = add i64 %turn, 1
  call void @pause()
  %long = icmp ugt i64 %turn, 1000
  br i1 %long, label %yield, label %paused
yield:
  %ignored = call i32 @sched_yield()
  br label %paused
paused:
  br label %waiting

finish:
  %worst = load atomic i64, ptr @worst acquire, align 8
  %fine = icmp eq i64 %worst, -1
  br i1 %fine, label %give_back, label %failed
failed:
  %at = getelementptr [1024 x i64], ptr @statuses, i64 0, i64 %worst
  %failure = load i64, ptr %at
  br label %give_back
give_back:
  %status = phi i64 [ 0, %finish ], [ %failure, %failed ]
  store atomic i32 0, ptr @taken release, align 4
  ret i64 %status
}

; Makes helpers until there are as many as wanted, or the system refuses. They take no signals.
define internal void @hire(i64 %wanted) {
entry:
  %thread = alloca i64
  %all = alloca [16 x i64]
  %before = alloca [16 x i64]
  %there = load i64, ptr @helpers
  %enough = icmp sge i64 %there, %wanted
  br i1 %enough, label %return, label %mask
mask:
  call void @llvm.memset.p0.i64(ptr %all, i8 -1, i64 128, i1 false)
  %masked = call i32 @pthread_sigmask(i32 2, ptr %all, ptr %before)
  br label %head
head:
  %number = phi i64 [ %there, %mask ], [ %me, %made ]
  %more = icmp slt i64 %number, %wanted
  br i1 %more, label %one, label %unmask
one:
  %me = add i64 %number, 1
  %bed = getelementptr [256 x [16 x i32]], ptr @beds, i64 0, i64 %me
  store atomic i32 0, ptr %bed monotonic, align 4
  %argument = inttoptr i64 %me to ptr
  %refused = call i32 @pthread_create(ptr %thread, ptr null, ptr @help, ptr %argument)
  %created = icmp eq i32 %refused, 0
  br i1 %created, label %made, label %unmask
made:
  store i64 %me, ptr @helpers
  %handle = load i64, ptr %thread
  %detached = call i32 @pthread_detach(i64 %handle)
  br label %head
unmask:
  %unmasked = call i32 @pthread_sigmask(i32 2, ptr %before, ptr null)
  br label %return
return:
  ret void
}

; The life of a helper.
define internal ptr @help(ptr %argument) {
entry:
  %me = ptrtoint ptr %argument to i64
  %bed = getelementptr [256 x [16 x i32]], ptr @beds, i64 0, i64 %me
  br label %awake
awake:
  %since = call i64 @now()
  br label %look
look:
  %chunk = call i64 @claim(i64 %me)
  %idle = icmp slt i64 %chunk, 0
  br i1 %idle, label %linger, label %work
work:
  %own = call i32 @control()
  %theirs = load i32, ptr getelementptr (%job, ptr @job, i64 0, i32 5)
  call void @set_control(i32 %theirs)
  call void @run_chunk(i64 %chunk)
  call void @set_control(i32 %own)
  %before = atomicrmw add ptr @done, i64 1 release
  br label %awake
linger:
  call void @pause()
  call void @pause()
  call void @pause()
  call void @pause()
  %now = call i64 @now()
  %idled = sub i64 %now, %since
  %patience = load i64, ptr @patience
  %tired = icmp sgt i64 %idled, %patience
  br i1 %tired, label %lie_down, label %look

  ; A caller publishes its ticket and then looks at the bed; this thread does so the other way
  ; round, and so one of them sees the other.
lie_down:
  %up = atomicrmw xchg ptr %bed, i32 1 seq_cst
  %ticket = load atomic i64, ptr @ticket seq_cst, align 8
  %open = call i1 @is_open(i64 %ticket, i64 %me)
  br i1 %open, label %get_up, label %asleep
asleep:
  %lying = load atomic i32, ptr %bed acquire, align 4
  %still = icmp eq i32 %lying, 1
  br i1 %still, label %sleep, label %awake
sleep:
  %woken = call i64 @futex(ptr %bed, i64 128, i64 1)
  br label %asleep
get_up:
  %down = atomicrmw xchg ptr %bed, i32 0 seq_cst
  br label %awake
}

; Wakes a helper if it sleeps, and takes the time.
define internal void @wake(i64 %helper) {
  %bed = getelementptr [256 x [16 x i32]], ptr @beds, i64 0, i64 %helper
  %lying = load atomic i32, ptr %bed seq_cst, align 4
  %asleep = icmp eq i32 %lying, 1
  br i1 %asleep, label %shake, label %over
shake:
  %was = atomicrmw xchg ptr %bed, i32 0 seq_cst
  %mine = icmp eq i32 %was, 1
  br i1 %mine, label %call, label %over
call:
  %start = call i64 @now()
  %ignored = call i64 @futex(ptr %bed, i64 129, i64 1)
  %end = call i64 @now()
  %taken = sub i64 %end, %start
  ; One that the system took long for, for reasons of its own, does not count for more than this.
  %counted = call i64 @llvm.smin.i64(i64 %taken, i64 20000)
  %known = load atomic i64, ptr @waking monotonic, align 8
  %more = sub i64 %counted, %known
  %part = ashr i64 %more, 3
  %cost = add i64 %known, %part
  store atomic i64 %cost, ptr @waking monotonic, align 8
  br label %over
over:
  ret void
}

; After a fork there are no helpers and no callers but this one.
define void @forget() {
  store i64 0, ptr @helpers
  store atomic i64 0, ptr @ticket seq_cst, align 8
  store atomic i32 0, ptr @taken seq_cst, align 4
  ret void
}

declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare i64 @llvm.smin.i64(i64, i64)
