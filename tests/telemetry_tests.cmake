# What runs write down about themselves.
add_unit_test(telemetry_test SANITIZE LINK ringmark::cluster nlohmann_json::nlohmann_json SOURCES
  telemetry/clock_alignment_test.cpp telemetry/current_step_test.cpp telemetry/event_log_test.cpp
  telemetry/hang_watch_test.cpp telemetry/metrics_text_test.cpp telemetry/trace_file_test.cpp
  telemetry/wait_graph_test.cpp)
add_test(NAME telemetry COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/cluster/telemetry.sh $<TARGET_FILE:ringmark>
  ${RINGMARK_TEST_DATA})
set_tests_properties(telemetry PROPERTIES TIMEOUT 300 LABELS command PROCESSORS 2
  ENVIRONMENT "${RINGMARK_RANK_ENVIRONMENT}")
add_test(NAME hang_report COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/cluster/hang_report.sh $<TARGET_FILE:ringmark>)
set_tests_properties(hang_report PROPERTIES TIMEOUT 200 LABELS command PROCESSORS 2
  ENVIRONMENT "${RINGMARK_RANK_ENVIRONMENT}")
