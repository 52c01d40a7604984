# Tests of `ringmark doctor` and of the settings that jobs look at.
add_unit_test(doctor_test SANITIZE LINK ringmark::cluster SOURCES
  doctor/judge_test.cpp doctor/launch_settings_test.cpp doctor/visible_devices_test.cpp)

# GPUs of a file, for the commands below: found as libnvidia-ml.so.1 through LD_LIBRARY_PATH.
add_library(fake_nvml SHARED support/fake_nvml.c)
set_target_properties(fake_nvml PROPERTIES OUTPUT_NAME nvidia-ml SUFFIX .so.1
  LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/fake_nvml)

# The command as another release of it would be: everything but its version is the same.
add_executable(ringmark_older ${PROJECT_SOURCE_DIR}/cluster/main.cpp ${PROJECT_SOURCE_DIR}/cluster/doctor/versions.cpp)
target_compile_options(ringmark_older PRIVATE -URINGMARK_VERSION "-DRINGMARK_VERSION=\"0.0.9\"")
target_link_libraries(ringmark_older PRIVATE ringmark::cluster fmt::fmt nlohmann_json::nlohmann_json)

# A build with CUDA asks CUDA for its GPUs, which no fake library gives.
if(NOT RINGMARK_HAS_CUDA)
  add_test(NAME doctor COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/doctor/doctor.sh
    $<TARGET_FILE:ringmark> $<TARGET_FILE:ringmark_older> ${CMAKE_CURRENT_BINARY_DIR}/fake_nvml ${PROJECT_SOURCE_DIR}/docs)
  set_tests_properties(doctor PROPERTIES TIMEOUT 400 LABELS command PROCESSORS 2
    ENVIRONMENT "${RINGMARK_RANK_ENVIRONMENT}")
  add_cluster_test(doctor_cluster full ${CMAKE_CURRENT_SOURCE_DIR}/doctor/doctor_cluster.sh
    ${RINGMARK_SLURM_CLUSTER} $<TARGET_FILE:ringmark> ${CMAKE_CURRENT_BINARY_DIR}/fake_nvml)
endif()
