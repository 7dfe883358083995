// Reads why a rank of a PyTorch program failed: from the file that torch.distributed.elastic's @record writes to
// $TORCHELASTIC_ERROR_FILE (torch/distributed/elastic/multiprocessing/errors/error_handler.py), and from its last
// output lines.
#include "launcher/torch_error.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

namespace trainctl {
namespace {

constexpr int64_t kMostBytes = 8 << 20;
/// Largest message and largest stack, in bytes; the rest is cut off.
constexpr size_t kMostText = 1 << 14;

std::string text_of(const nlohmann::json& json, const char* name) {
  const auto found = json.find(name);
  return found != json.end() && found->is_string() ? found->get<std::string>() : "";
}

/// A number, or a number as text; 0 if there is none.
double time_of(const nlohmann::json& json) {
  const auto found = json.find("timestamp");
  if (found == json.end()) return 0;
  const double time = found->is_number()   ? found->get<double>()
                      : found->is_string() ? std::strtod(found->get<std::string>().c_str(), nullptr)
                                           : 0;
  return std::isfinite(time) && time > 0 ? time : 0;
}

/// The beginning of a message describes what happened, the end of a stack where.
std::string beginning(std::string text) {
  if (text.size() > kMostText) text = text.substr(0, kMostText) + "…";
  return text;
}
std::string end(std::string text) {
  if (text.size() > kMostText) text = "…" + text.substr(text.size() - kMostText);
  return text;
}

bool contains_any(std::string_view text, const auto& parts) {
  return std::any_of(parts.begin(), parts.end(),
                     [&](std::string_view part) { return text.find(part) != std::string_view::npos; });
}

std::string read_whole(int fd, int64_t size) {
  std::string text(static_cast<size_t>(size), '\0');
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t got = read(fd, text.data() + done, text.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    done += static_cast<size_t>(got);
  }
  text.resize(done);
  return text;
}

}  // namespace

bool mentions_peer(std::string_view text) {
  static constexpr std::array<std::string_view, 10> kSpeakers = {"gloo",
                                                                 "Gloo",
                                                                 "NCCL",
                                                                 "nccl",
                                                                 "c10d",
                                                                 "TCPStore",
                                                                 "ProcessGroup",
                                                                 "DistBackendError",
                                                                 "DistNetworkError",
                                                                 "DistStoreError"};
  static constexpr std::array<std::string_view, 11> kTroubles = {
      "imed out", "imeout",  "closed by peer", "reset by peer",  "Connection refused", "Broken pipe",
      "remote",   "aborted", "Socket closed",  "failed to recv", "failed to pass"};
  return contains_any(text, kSpeakers) && contains_any(text, kTroubles);
}

std::optional<RankError> parse_torch_error(std::string_view text, double modified) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object() || !json.contains("message")) return std::nullopt;
  const nlohmann::json& message = json["message"];
  RankError error;
  if (message.is_string()) {
    error.what = message.get<std::string>();
    error.time = time_of(json);
  } else if (message.is_object()) {
    error.what = text_of(message, "message");
    if (const auto info = message.find("extraInfo"); info != message.end() && info->is_object()) {
      error.stack = end(text_of(*info, "py_callstack"));
      error.time = time_of(*info);
    }
  }
  if (error.what.empty() && error.stack.empty()) return std::nullopt;
  error.kind = mentions_peer(error.what) ? ErrorKind::comm : ErrorKind::program;
  error.what = beginning(error.what);
  // Python truncates the timestamp; writing the file may take a moment.
  constexpr double kWritingSeconds = 2;
  if (error.time <= 0 || (modified >= error.time && modified < error.time + kWritingSeconds)) error.time = modified;
  return error;
}

std::optional<RankError> read_torch_error(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);  // O_NONBLOCK: it may be a FIFO
  if (fd < 0) return std::nullopt;
  struct stat status {};
  std::optional<RankError> error;
  if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_size <= kMostBytes) {
    const double modified =
        static_cast<double>(status.st_mtim.tv_sec) + static_cast<double>(status.st_mtim.tv_nsec) / 1e9;
    error = parse_torch_error(read_whole(fd, status.st_size), modified);
  }
  close(fd);
  return error;
}

}  // namespace trainctl
