set(NEB_THREAD_TESTS pool stream)
set(NEB_SLOW_TESTS)
