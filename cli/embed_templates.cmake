# embed_templates(<out.cpp> <folder> <function> <suffix>): the files of a folder that end so, as what <function>() of
# job_templates.h returns.
function(embed_templates output folder function suffix)
  file(GLOB templates CONFIGURE_DEPENDS ${folder}/*${suffix})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${templates})
  set(items "")
  foreach(file ${templates})
    get_filename_component(name ${file} NAME)
    string(REGEX REPLACE "\\${suffix}$" "" name ${name})
    file(READ ${file} text)
    string(APPEND items "    {\"${name}\", R\"trainctl-job(${text})trainctl-job\"},\n")
  endforeach()
  file(CONFIGURE OUTPUT ${output} @ONLY CONTENT [[
// Generated from templates/ by CMake.
#include "cli/text/job_templates.h"

namespace trainctl {

const std::vector<JobTemplate>& @function@() {
  static const std::vector<JobTemplate> templates = {
@items@  };
  return templates;
}

}  // namespace trainctl
]])
endfunction()
