# What runs under Slurm, on the cluster that cluster/testing brings up: `ctest --preset cluster`, as root.
set(RINGMARK_SLURM_CLUSTER ${PROJECT_SOURCE_DIR}/cluster/testing/slurm_cluster.sh)
set(RINGMARK_SLURM_SCRIPTS ${PROJECT_SOURCE_DIR}/cluster/slurm)

# add_cluster_test(NAME LABEL ENVIRONMENT... COMMAND...). LABEL `cluster` runs in CI; `full` in `make test-full`: many hosts on
# few cores, where MPI's start over TCP does not always end well (docs/slurm.md).
function(add_cluster_test name label)
  add_test(NAME ${name} COMMAND env ${ARGN})
  set_tests_properties(${name} PROPERTIES TIMEOUT 400 LABELS ${label} RESOURCE_LOCK cluster PROCESSORS 2
    ENVIRONMENT "${RINGMARK_RANK_ENVIRONMENT}")
endfunction()

add_cluster_test(slurm_cluster cluster ${CMAKE_CURRENT_SOURCE_DIR}/slurm/cluster.sh ${RINGMARK_SLURM_CLUSTER})
# `timeout` ends a cluster in order, ctest's own TIMEOUT would not.
foreach(hosts 2 4 8)
  if(hosts EQUAL 2)
    set(label cluster)
  else()
    set(label full)
  endif()
  add_cluster_test(slurm_batch_scripts.${hosts} ${label} NODES=${hosts} timeout -k 20 300 ${RINGMARK_SLURM_CLUSTER}
    ${CMAKE_CURRENT_SOURCE_DIR}/slurm/batch_scripts.sh $<TARGET_FILE:ringmark> ${RINGMARK_TEST_DATA} ${RINGMARK_SLURM_SCRIPTS})
endforeach()
foreach(test failures requeue)
  add_cluster_test(slurm_${test} full NODES=2 SLURMD_TIMEOUT=10 timeout -k 20 300 ${RINGMARK_SLURM_CLUSTER}
    ${CMAKE_CURRENT_SOURCE_DIR}/slurm/${test}.sh $<TARGET_FILE:ringmark> ${RINGMARK_SLURM_SCRIPTS})
endforeach()
add_cluster_test(slurm_scaling_array full NODES=8 timeout -k 20 300 ${RINGMARK_SLURM_CLUSTER}
  ${CMAKE_CURRENT_SOURCE_DIR}/slurm/scaling_array.sh $<TARGET_FILE:ringmark> ${RINGMARK_SLURM_SCRIPTS})
add_cluster_test(slurm_study_failures full NODES=3 SLURMD_TIMEOUT=10 timeout -k 20 300 ${RINGMARK_SLURM_CLUSTER}
  ${CMAKE_CURRENT_SOURCE_DIR}/slurm/study_failures.sh $<TARGET_FILE:ringmark> ${RINGMARK_SLURM_SCRIPTS})
