# Tests of cluster/planning.
add_unit_test(planning_test LINK ringmark::cluster SOURCES
  cluster/planning/cost_model_test.cpp cluster/planning/expected_fetch_test.cpp
  cluster/planning/machine_profile_test.cpp
  cluster/planning/stage_fit_test.cpp)
find_package(Python3 COMPONENTS Interpreter)
if(Python3_FOUND)
  add_test(NAME plan COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/cluster/plan.py $<TARGET_FILE:ringmark>)
  set_tests_properties(plan PROPERTIES TIMEOUT 300 LABELS command PROCESSORS 2
    ENVIRONMENT "${RINGMARK_RANK_ENVIRONMENT}")
endif()
