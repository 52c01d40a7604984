# Tests of the command line, and with it.
add_unit_test(command_line_test SANITIZE LINK ringmark::cluster SOURCES
  cluster/branch_options_test.cpp cluster/options_test.cpp cluster/policy_options_test.cpp cluster/progress_test.cpp cluster/size_text_test.cpp)

# The binary as a user runs it.
add_executable(write_malformed_files cluster/write_malformed_files.cpp)
target_link_libraries(write_malformed_files PRIVATE ringmark_test_cpu_engine fmt::fmt)
add_test(NAME command_line COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/cluster/command_line.sh
  $<TARGET_FILE:ringmark> $<TARGET_FILE:write_malformed_files> ${RINGMARK_TEST_DATA})
set_tests_properties(command_line PROPERTIES TIMEOUT 300 LABELS "command;sanitize"
  ENVIRONMENT "${RINGMARK_RANK_ENVIRONMENT}")
add_test(NAME inspect COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/cluster/inspect.sh $<TARGET_FILE:ringmark> ${RINGMARK_TEST_DATA})
set_tests_properties(inspect PROPERTIES TIMEOUT 120 LABELS "command;sanitize" PROCESSORS 2
  ENVIRONMENT "${RINGMARK_RANK_ENVIRONMENT}")
add_test(NAME policies COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/cluster/policies.sh $<TARGET_FILE:ringmark>
  ${PROJECT_SOURCE_DIR}/docs)
set_tests_properties(policies PROPERTIES TIMEOUT 60 LABELS "command;sanitize" ENVIRONMENT "${RINGMARK_RANK_ENVIRONMENT}")
add_test(NAME decode COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/cluster/decode.sh $<TARGET_FILE:ringmark> ${RINGMARK_TEST_DATA})
set_tests_properties(decode PROPERTIES TIMEOUT 900 LABELS command PROCESSORS 2
  ENVIRONMENT "${RINGMARK_RANK_ENVIRONMENT}")
add_test(NAME positions COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/cluster/positions.sh
  $<TARGET_FILE:ringmark> ${RINGMARK_TEST_DATA})
set_tests_properties(positions PROPERTIES TIMEOUT 300 LABELS command PROCESSORS 2
  ENVIRONMENT "${RINGMARK_RANK_ENVIRONMENT}")
add_test(NAME recall COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/cluster/recall.sh $<TARGET_FILE:ringmark> ${RINGMARK_TEST_DATA})
set_tests_properties(recall PROPERTIES TIMEOUT 300 LABELS command PROCESSORS 2
  ENVIRONMENT "${RINGMARK_RANK_ENVIRONMENT}")
add_test(NAME logits COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/cluster/logits.sh $<TARGET_FILE:ringmark> ${RINGMARK_TEST_DATA})
set_tests_properties(logits PROPERTIES TIMEOUT 300 LABELS command PROCESSORS 2
  ENVIRONMENT "${RINGMARK_RANK_ENVIRONMENT}")
add_test(NAME reuse COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/cluster/reuse.sh $<TARGET_FILE:ringmark> ${RINGMARK_TEST_DATA})
set_tests_properties(reuse PROPERTIES TIMEOUT 600 LABELS command PROCESSORS 2
  ENVIRONMENT "${RINGMARK_RANK_ENVIRONMENT}")
add_test(NAME prefill_stops COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/cluster/prefill_stops.sh
  $<TARGET_FILE:ringmark> ${RINGMARK_TEST_DATA} 96k 3)
set_tests_properties(prefill_stops PROPERTIES TIMEOUT 600 LABELS command PROCESSORS 2
  ENVIRONMENT "${RINGMARK_RANK_ENVIRONMENT}")
add_test(NAME prefill_stops_full COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/cluster/prefill_stops.sh
  $<TARGET_FILE:ringmark> ${RINGMARK_TEST_DATA} 256k 20)
set_tests_properties(prefill_stops_full PROPERTIES TIMEOUT 1800 LABELS full PROCESSORS 2
  ENVIRONMENT "${RINGMARK_RANK_ENVIRONMENT}")
# Recorded by a library that is loaded before the others, which the sanitizers' own would have to be.
if(NOT RINGMARK_SANITIZE)
  add_library(record_writes MODULE support/record_writes.c)
  target_link_libraries(record_writes PRIVATE ${CMAKE_DL_LIBS})
  add_test(NAME write_order COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/cluster/write_order.sh
    $<TARGET_FILE:ringmark> $<TARGET_FILE:record_writes> ${RINGMARK_TEST_DATA})
  set_tests_properties(write_order PROPERTIES TIMEOUT 120 LABELS command PROCESSORS 2
    ENVIRONMENT "${RINGMARK_RANK_ENVIRONMENT}")
endif()
add_test(NAME dense COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/cluster/dense.sh $<TARGET_FILE:ringmark> ${RINGMARK_TEST_DATA})
set_tests_properties(dense PROPERTIES TIMEOUT 600 LABELS command PROCESSORS 2
  ENVIRONMENT "${RINGMARK_RANK_ENVIRONMENT}")
add_test(NAME backward COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/cluster/backward.sh
  $<TARGET_FILE:ringmark> ${RINGMARK_TEST_DATA})
set_tests_properties(backward PROPERTIES TIMEOUT 300 LABELS command PROCESSORS 2
  ENVIRONMENT "${RINGMARK_RANK_ENVIRONMENT}")
add_test(NAME pooled COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/cluster/pooled.sh $<TARGET_FILE:ringmark> ${RINGMARK_TEST_DATA})
set_tests_properties(pooled PROPERTIES TIMEOUT 600 LABELS command PROCESSORS 2
  ENVIRONMENT "${RINGMARK_RANK_ENVIRONMENT}")
# A few random moments, and a hundred.
add_test(NAME kill_points COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/cluster/kill_points.sh
  $<TARGET_FILE:ringmark> ${RINGMARK_TEST_DATA}/layer.safetensors 12)
set_tests_properties(kill_points PROPERTIES TIMEOUT 900 LABELS full RUN_SERIAL ON
  ENVIRONMENT "${RINGMARK_RANK_ENVIRONMENT}")
add_test(NAME kill_points_full COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/cluster/kill_points.sh
  $<TARGET_FILE:ringmark> ${RINGMARK_TEST_DATA}/layer.safetensors 100)
set_tests_properties(kill_points_full PROPERTIES TIMEOUT 1800 LABELS full RUN_SERIAL ON
  ENVIRONMENT "${RINGMARK_RANK_ENVIRONMENT}")
add_test(NAME one_digest COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/cluster/one_digest.sh
  $<TARGET_FILE:ringmark> ${RINGMARK_TEST_DATA} share request $<$<BOOL:${RINGMARK_HAS_UCX}>:ucx>)
set_tests_properties(one_digest PROPERTIES TIMEOUT 600 LABELS command ENVIRONMENT "${RINGMARK_RANK_ENVIRONMENT}")
add_test(NAME one_digest_full COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/cluster/one_digest.sh
  $<TARGET_FILE:ringmark> ${RINGMARK_TEST_DATA} all request $<$<BOOL:${RINGMARK_HAS_UCX}>:ucx>)
set_tests_properties(one_digest_full PROPERTIES TIMEOUT 900 LABELS full ENVIRONMENT "${RINGMARK_RANK_ENVIRONMENT}")
add_test(NAME deadline COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/cluster/deadline.sh $<TARGET_FILE:ringmark>
  rma request $<$<BOOL:${RINGMARK_HAS_UCX}>:ucx>)
set_tests_properties(deadline PROPERTIES TIMEOUT 600 LABELS command PROCESSORS 2
  ENVIRONMENT "${RINGMARK_RANK_ENVIRONMENT}")
if(RINGMARK_HAS_UCX)
  add_test(NAME ucx_namespaces COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/cluster/ucx_namespaces.sh
    $<TARGET_FILE:ringmark> $<TARGET_FILE:mpi_comm_test> ${RINGMARK_TEST_DATA})
  set_tests_properties(ucx_namespaces PROPERTIES TIMEOUT 240 LABELS command PROCESSORS 2 SKIP_RETURN_CODE 77
    ENVIRONMENT "${RINGMARK_RANK_ENVIRONMENT}")
endif()
add_test(NAME million_tokens COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/cluster/million_tokens.sh $<TARGET_FILE:ringmark>)
set_tests_properties(million_tokens PROPERTIES TIMEOUT 1800 LABELS command PROCESSORS 2
  ENVIRONMENT "${RINGMARK_RANK_ENVIRONMENT}")
foreach(policy dilated logo)
  add_test(NAME ${policy} COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/cluster/${policy}.sh $<TARGET_FILE:ringmark>)
  set_tests_properties(${policy} PROPERTIES TIMEOUT 600 LABELS command PROCESSORS 2
    ENVIRONMENT "${RINGMARK_RANK_ENVIRONMENT}")
endforeach()
