# Tests that need a GPU: built wherever nvcc is found, run by `ctest --preset gpu` (without a GPU they skip).
add_library(ringmark_test_gpu_engine OBJECT support/gpu_engine.cpp)
target_link_libraries(ringmark_test_gpu_engine PUBLIC ringmark::runtime_cuda ringmark_test_support)

function(add_gpu_test name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK;ENVIRONMENT" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_LINK} ringmark_test_gpu_engine GTest::gtest_main)
  add_test(NAME ${name} COMMAND ${name} --gtest_brief=1 --gtest_filter=-*Full.*)
  set_tests_properties(${name} PROPERTIES TIMEOUT 300 LABELS gpu RUN_SERIAL ON
    ENVIRONMENT "${RINGMARK_TEST_ENVIRONMENT}")
endfunction()

add_gpu_test(cuda_kernels_test LINK ringmark::kernels_cuda OpenMP::OpenMP_CXX SOURCES
  kernels/cuda/blocks_test.cpp kernels/cuda/few_attend_test.cpp kernels/cuda/hopper_attend_test.cpp kernels/cuda/hopper_score_test.cpp
  kernels/cuda/landmarks_test.cpp kernels/cuda/merge_test.cpp kernels/cuda/mma_attend_test.cpp
  kernels/cuda/mma_score_test.cpp kernels/cuda/plan_unions_test.cpp kernels/cuda/row_geometry_test.cpp
  kernels/cuda/score_exactly_test.cpp kernels/cuda/settle_choices_test.cpp kernels/cuda/simt_attend_test.cpp)
add_gpu_test(cuda_transport_test LINK ringmark::comm_cuda SOURCES comm/cuda_transport_test.cpp)
if(RINGMARK_HAS_CUDNN)
  add_gpu_test(cudnn_test LINK ringmark::kernels_cudnn SOURCES kernels/cuda/cudnn_dense_test.cpp)
endif()
if(RINGMARK_BENCH)
  add_gpu_test(planted_device_test LINK ringmark_bench_gpu SOURCES bench/planted_device_test.cpp)
endif()
# Several processes, on one GPU or each on its own: run by bench/gpu_check.sh under mpirun.
add_executable(cuda_ipc_mpi_test comm/cuda_ipc_mpi_test.cpp rank_main.cpp)
target_link_libraries(cuda_ipc_mpi_test PRIVATE ringmark::comm_cuda GTest::gtest)

# The promises of prefill on several GPUs: likewise, by bench/gpu_scaling.sh.
add_executable(prefill_gpu_mpi_test runtime/prefill_mpi_test.cpp rank_main.cpp)
target_link_libraries(prefill_gpu_mpi_test PRIVATE ringmark::runtime_cuda ringmark_test_gpu_engine GTest::gtest)

# Decisions that need no GPU.
add_unit_test(gpu_decisions_test LINK ringmark::runtime_cuda SOURCES
  comm/choose_device_test.cpp comm/nccl_plan_test.cpp kernels/cuda/choose_union_path_test.cpp
  runtime/dense_hop_test.cpp)

# The whole engine on the GPU: the tests of the CPU, word for word, by each family of kernels.
add_gpu_test(prefill_gpu_test SOURCES runtime/prefill_thread_test.cpp)
foreach(family mma simt)
  add_test(NAME prefill_gpu_test.${family} COMMAND prefill_gpu_test --gtest_brief=1 --gtest_filter=-*Full.*)
  set_tests_properties(prefill_gpu_test.${family} PROPERTIES TIMEOUT 300 LABELS gpu RUN_SERIAL ON
    ENVIRONMENT "${RINGMARK_TEST_ENVIRONMENT};RINGMARK_TEST_KERNELS=${family}")
endforeach()

add_gpu_test(dense_ring_gpu_test SOURCES runtime/dense_ring_gpu_test.cpp)

# Decoding on the GPU: what the CPU promises too, with blocks read where peers have them and with blocks fetched.
add_gpu_test(decode_gpu_test SOURCES runtime/decode_engine_test.cpp)
add_test(NAME decode_gpu_test.fetch COMMAND decode_gpu_test --gtest_brief=1)
set_tests_properties(decode_gpu_test.fetch PROPERTIES TIMEOUT 300 LABELS gpu RUN_SERIAL ON
  ENVIRONMENT "${RINGMARK_TEST_ENVIRONMENT};RINGMARK_TEST_FETCH=1")
