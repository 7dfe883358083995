# LibArchive for the launcher, which writes only .tar.gz. The shared library needs libxml2, ICU, nettle and more: 38 MB in
# the installed tree. From the static library the linker keeps only the parts in use, 0.1 MB. If that does not link (its
# sections are not separate), the shared library is used.
include(CheckCXXSourceCompiles)
find_package(LibArchive REQUIRED)
find_library(TRAINCTL_STATIC_LIBARCHIVE libarchive.a)
add_library(trainctl_libarchive INTERFACE)
target_include_directories(trainctl_libarchive SYSTEM INTERFACE ${LibArchive_INCLUDE_DIRS})
if(TRAINCTL_STATIC_LIBARCHIVE)
  set(CMAKE_REQUIRED_INCLUDES ${LibArchive_INCLUDE_DIRS})
  set(CMAKE_REQUIRED_LIBRARIES ${TRAINCTL_STATIC_LIBARCHIVE} ZLIB::ZLIB)
  set(CMAKE_REQUIRED_LINK_OPTIONS LINKER:--gc-sections LINKER:--exclude-libs,libarchive.a)
  check_cxx_source_compiles("
    #include <archive.h>
    int main() {
      archive* a = archive_write_new();
      archive_write_set_format_pax_restricted(a);
      archive_write_add_filter_gzip(a);
      archive_write_set_filter_option(a, \"gzip\", \"compression-level\", \"4\");
      return archive_write_open_fd(a, 1);
    }" TRAINCTL_LIBARCHIVE_LINKS_IN_PARTS)
  unset(CMAKE_REQUIRED_INCLUDES)
  unset(CMAKE_REQUIRED_LIBRARIES)
  unset(CMAKE_REQUIRED_LINK_OPTIONS)
endif()
if(TRAINCTL_LIBARCHIVE_LINKS_IN_PARTS)
  target_link_libraries(trainctl_libarchive INTERFACE ${TRAINCTL_STATIC_LIBARCHIVE} ZLIB::ZLIB)
  target_link_options(trainctl_libarchive INTERFACE LINKER:--gc-sections LINKER:--exclude-libs,libarchive.a)
else()
  message(STATUS "libarchive: the shared library")
  target_link_libraries(trainctl_libarchive INTERFACE ${LibArchive_LIBRARIES})
endif()
