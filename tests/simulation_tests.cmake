# Tests of cluster/simulation.
add_unit_test(simulation_test LINK ringmark::cluster SOURCES
  cluster/simulation/replay_test.cpp cluster/simulation/schedule_test.cpp)
if(RINGMARK_HAS_SIMGRID)
  target_compile_definitions(simulation_test PRIVATE RINGMARK_HAS_SIMGRID=1)
endif()
