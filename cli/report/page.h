// The page of `trainctl report`: one self-contained HTML file.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace trainctl {

/// page/report.html with the style, the scripts and `data` (run_data.h) inserted.
std::string report_page(const nlohmann::ordered_json& data);
/// Writes the page to a file and returns its size in bytes. Throws EnvError.
int64_t write_page(const std::string& path, const nlohmann::ordered_json& data);

// The files of page/, embedded in the binary (cli/CMakeLists.txt generates the .cpp).
std::string_view page_html();
std::string_view page_style();
std::string_view page_script();  ///< all *.js, in alphabetical order

/// The version shown on pages.
std::string_view report_version();

}  // namespace trainctl
