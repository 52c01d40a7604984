# Tests of cluster/simulation.
add_unit_test(simulation_test LINK ringmark::cluster SOURCES
  cluster/simulation/replay_test.cpp cluster/simulation/schedule_test.cpp)
