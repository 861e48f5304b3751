# Tests whose threads are worth a run under TSan.
set(NEB_THREAD_TESTS device_cpu pool batches tape store link greet lab stream stream_lies status session session_disk
    session_end session_job session_parts session_privacy)
# Tests that would take minutes under a sanitizer.
set(NEB_SLOW_TESTS faults)
# Tests that measure time or need both cores: CTest runs nothing beside them.
set(NEB_ALONE_TESTS lab link faults wan pool)
