# Scaling studies: figures and files in one process, a small study under mpirun, and one under Slurm with what breaks in it.
add_unit_test(scaling_test SANITIZE SOURCES cluster/scaling/statistics_test.cpp cluster/scaling/study_test.cpp
  LINK ringmark::cluster nlohmann_json::nlohmann_json)
add_test(NAME scaling COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/cluster/scaling/study.sh $<TARGET_FILE:ringmark>)
set_tests_properties(scaling PROPERTIES TIMEOUT 120 LABELS command PROCESSORS 2
  ENVIRONMENT "${RINGMARK_RANK_ENVIRONMENT}")
add_cluster_test(scaling_cluster full ${CMAKE_CURRENT_SOURCE_DIR}/cluster/scaling/cluster.sh $<TARGET_FILE:ringmark>
  ${RINGMARK_SLURM_CLUSTER} ${RINGMARK_SLURM_SCRIPTS})
