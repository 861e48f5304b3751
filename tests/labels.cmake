set(NEB_THREAD_TESTS pool stream tape)
set(NEB_SLOW_TESTS)
