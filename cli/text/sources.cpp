// Keeps the texts of files that errors may quote.
#include "cli/text/sources.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <utility>

namespace trainctl {
namespace {

/// Source texts by file name. A command reads one job, so this is small.
std::map<std::string, std::string>& kept_sources() {
  static std::map<std::string, std::string> sources;
  return sources;
}

std::string read_text(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return "";  // opening a FIFO would block
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

void keep_source(const std::string& file, std::string text) { kept_sources()[file] = std::move(text); }

const std::string& source_of(const SourcePos& pos) {
  const auto [source, is_new] = kept_sources().try_emplace(pos.file);
  if (is_new && pos.known()) source->second = read_text(pos.file);
  return source->second;
}

}  // namespace trainctl
