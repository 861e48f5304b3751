set(NEB_THREAD_TESTS pool stream tape store)
set(NEB_SLOW_TESTS)
