# Results of every policy against numpy, which knows the formulas and nothing of our code.
find_program(RINGMARK_PYTHON NAMES python3 PATHS /usr/bin NO_DEFAULT_PATH)
set(RINGMARK_HAS_NUMPY OFF)
if(RINGMARK_PYTHON)
  execute_process(COMMAND ${RINGMARK_PYTHON} -c "import numpy" RESULT_VARIABLE RINGMARK_NO_NUMPY OUTPUT_QUIET ERROR_QUIET)
  if(RINGMARK_NO_NUMPY EQUAL 0)
    set(RINGMARK_HAS_NUMPY ON)
  endif()
endif()
if(NOT RINGMARK_HAS_NUMPY)
  message(STATUS "No /usr/bin/python3 with numpy (Debian: python3-numpy): policies are not compared with numpy")
  return()
endif()

# A script of tests/policies with the binary as its first argument.
function(add_policy_test name script)
  add_test(NAME ${name} COMMAND ${RINGMARK_PYTHON} -B ${CMAKE_CURRENT_SOURCE_DIR}/policies/${script}
    $<TARGET_FILE:ringmark> ${ARGN})
  set_tests_properties(${name} PROPERTIES TIMEOUT 600 LABELS command PROCESSORS 2
    ENVIRONMENT "${RINGMARK_RANK_ENVIRONMENT}")
endfunction()

add_test(NAME policy_formulas COMMAND ${RINGMARK_PYTHON} -B ${CMAKE_CURRENT_SOURCE_DIR}/policies/attention_test.py)
set_tests_properties(policy_formulas PROPERTIES TIMEOUT 60 LABELS unit)
add_policy_test(policy_golden_stingy golden_stingy.py)
add_policy_test(policy_golden golden.py)
add_policy_test(policy_landmark_query golden_landmark_query.py)
add_policy_test(backward_golden golden_backward.py ${RINGMARK_TEST_DATA})
add_policy_test(policy_golden_nsa golden_nsa.py)
add_policy_test(policy_golden_compressive golden_compressive.py)
add_policy_test(policy_golden_dilated golden_dilated.py)
add_policy_test(policy_golden_logo golden_logo.py)
