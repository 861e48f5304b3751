set(NEB_THREAD_TESTS device_cpu pool batches tape store)
set(NEB_SLOW_TESTS session)
list(APPEND NEB_THREAD_TESTS link)
list(APPEND NEB_THREAD_TESTS lab)
