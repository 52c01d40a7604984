# hwloc, for what `ringmark doctor` says of packages, cores, NUMA nodes and devices; optional. Sets RINGMARK_HAS_HWLOC
# and what the summary says.
set(RINGMARK_HAS_HWLOC OFF)
set(RINGMARK_HWLOC_SUMMARY "off: not found (Debian: libhwloc-dev)")
find_path(HWLOC_INCLUDE_DIR hwloc.h HINTS ${HWLOC_ROOT} $ENV{HWLOC_ROOT} PATH_SUFFIXES include)
find_library(HWLOC_LIBRARY hwloc HINTS ${HWLOC_ROOT} $ENV{HWLOC_ROOT} PATH_SUFFIXES lib lib64)
if(HWLOC_INCLUDE_DIR AND HWLOC_LIBRARY)
  set(RINGMARK_HAS_HWLOC ON)
  set(RINGMARK_HWLOC_SUMMARY "${HWLOC_LIBRARY}")
endif()
