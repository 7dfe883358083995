# embed_page(<out.cpp> <folder>): report.html, report.css and all *.js of a folder as the functions of report/page.h.
function(embed_page output folder)
  file(GLOB scripts CONFIGURE_DEPENDS ${folder}/*.js)
  set(files ${folder}/report.html ${folder}/report.css ${scripts})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${files})
  file(READ ${folder}/report.html html)
  file(READ ${folder}/report.css style)
  set(script "")
  foreach(file ${scripts})
    file(READ ${file} text)
    string(APPEND script "${text}")
  endforeach()
  file(CONFIGURE OUTPUT ${output} @ONLY CONTENT [[
// Generated from report/page/ by CMake.
#include "cli/report/page.h"

namespace trainctl {

std::string_view page_html() { return R"trainctl-page(@html@)trainctl-page"; }
std::string_view page_style() { return R"trainctl-page(@style@)trainctl-page"; }
std::string_view page_script() { return R"trainctl-page(@script@)trainctl-page"; }

}  // namespace trainctl
]])
endfunction()
