# embed_templates(<out.cpp> <folder> <function> <suffix>): the files of a folder that end so, as what <function>() of
# job_templates.h returns. Without a suffix: the files of the folder and those below it, named by their paths from above it.
function(embed_templates output folder function suffix)
  get_filename_component(above ${folder} DIRECTORY)
  if(suffix)
    file(GLOB templates CONFIGURE_DEPENDS ${folder}/*${suffix})
  else()
    file(GLOB_RECURSE templates CONFIGURE_DEPENDS ${folder}/*)
  endif()
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${templates})
  set(items "")
  foreach(file ${templates})
    get_filename_component(name ${file} NAME)
    if(suffix)
      string(REGEX REPLACE "\\${suffix}$" "" name ${name})
    else()
      file(RELATIVE_PATH name ${above} ${file})
    endif()
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
