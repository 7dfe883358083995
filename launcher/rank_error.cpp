// Converts error.json to and from text.
#include "launcher/rank_error.h"

#include <array>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

namespace trainctl {
namespace {

constexpr std::array<std::string_view, 7> kKinds = {"spec", "env", "comm", "bug", "loss", "program", "audit"};

std::optional<ErrorKind> parse_kind(std::string_view word) {
  for (size_t i = 0; i < kKinds.size(); ++i) {
    if (kKinds[i] == word) return static_cast<ErrorKind>(i);
  }
  return std::nullopt;
}

/// An integer that fits the type; converting a number like 1e30 would be undefined behavior.
template <class Integer>
Integer integer(const nlohmann::json& json, const char* name, Integer otherwise) {
  const auto found = json.find(name);
  if (found == json.end() || !found->is_number_integer()) return otherwise;
  const auto value = found->get<int64_t>();
  return std::in_range<Integer>(value) ? static_cast<Integer>(value) : otherwise;
}

std::vector<int> ranks(const nlohmann::json& json) {
  std::vector<int> list;
  for (const auto& item : json) {
    if (item.is_number_integer() && std::in_range<int>(item.get<int64_t>())) list.push_back(item.get<int>());
  }
  return list;
}

/// Limits the size of a text: a rank may write anything, and an agent sends an error in one message.
constexpr size_t kMostErrorText = 32 << 10;
constexpr int64_t kMostErrorFile = 8 << 20;

std::string clipped(std::string text) {
  if (text.size() > kMostErrorText) text.replace(kMostErrorText, std::string::npos, "…");
  return text;
}

}  // namespace

std::string_view to_string(ErrorKind kind) { return kKinds[static_cast<size_t>(kind)]; }

std::string to_json(const RankError& error) {
  nlohmann::ordered_json json;
  json["kind"] = to_string(error.kind);
  json["what"] = error.what;
  if (!error.instruction.empty()) json["instruction"] = error.instruction;
  if (error.instruction_index >= 0) json["instruction_index"] = error.instruction_index;
  if (error.step > 0) json["step"] = error.step;
  if (!error.missing.empty()) json["missing"] = error.missing;
  json["time"] = error.time;
  if (!error.stack.empty()) json["stack"] = error.stack;
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::optional<RankError> parse_rank_error(std::string_view text) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) return std::nullopt;
  try {
    const std::optional<ErrorKind> kind = parse_kind(json.value("kind", ""));
    if (!kind) return std::nullopt;
    RankError error;
    error.kind = *kind;
    error.what = clipped(json.value("what", ""));
    error.instruction = clipped(json.value("instruction", ""));
    error.instruction_index = integer(json, "instruction_index", -1);
    error.step = integer(json, "step", 0L);
    if (json.contains("missing")) error.missing = ranks(json["missing"]);
    error.time = json.value("time", 0.0);
    error.stack = clipped(json.value("stack", ""));
    return error;
  } catch (const nlohmann::json::exception&) {  // a field of another type
    return std::nullopt;
  }
}

void write_rank_error(const std::string& directory, const RankError& error) {
  const std::string path = directory + "/error.json";
  const std::string partial = path + ".part";
  {
    std::ofstream file(partial);
    file << to_json(error);
    if (!file.flush()) return;
  }
  std::rename(partial.c_str(), path.c_str());
}

std::optional<RankError> read_rank_error(const std::string& directory) {
  std::ifstream file(directory + "/error.json", std::ios::binary | std::ios::ate);
  const std::streamoff bytes = file.tellg();
  if (!file || bytes < 0 || bytes > kMostErrorFile) return std::nullopt;
  std::string text(static_cast<size_t>(bytes), '\0');
  file.seekg(0);
  if (!file.read(text.data(), bytes)) return std::nullopt;
  return parse_rank_error(text);
}

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace trainctl
