# embed_templates(<out.cpp>): templates/*.yaml as job_templates().
function(embed_templates output)
  file(GLOB templates CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/templates/*.yaml)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${templates})
  set(items "")
  foreach(file ${templates})
    get_filename_component(name ${file} NAME_WE)
    file(READ ${file} text)
    string(APPEND items "    {\"${name}\", R\"trainctl-job(${text})trainctl-job\"},\n")
  endforeach()
  file(CONFIGURE OUTPUT ${output} @ONLY CONTENT [[
// Generated from templates/ by CMake.
#include "cli/job_templates.h"

namespace trainctl {

const std::vector<JobTemplate>& job_templates() {
  static const std::vector<JobTemplate> templates = {
@items@  };
  return templates;
}

}  // namespace trainctl
]])
endfunction()
