// libFuzzer target: with any bytes as a rank's logs and as the times of its lines, every byte of the logs is returned
// once and in order, and a reader that starts at any position gets the rest of the logs. Any text is accepted or
// refused as --rank and --since.
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>

#include "launcher/log_selection.h"
#include "launcher/log_stream.h"

namespace {

using namespace trainctl;

/// A folder per process, in memory if possible.
struct LogFolder {
  LogFolder() {
    const bool in_memory = std::filesystem::is_directory("/dev/shm");
    path = (in_memory ? "/dev/shm" : std::filesystem::temp_directory_path().string()) + "/fuzz-logs-XXXXXX";
    if (mkdtemp(path.data()) == nullptr) std::abort();
    std::filesystem::create_directory(path + "/times");
  }
  ~LogFolder() { std::filesystem::remove_all(path); }
  std::string path;
};

const std::string& folder() {
  static const LogFolder one;
  return one.path;
}

void require(bool holds) {
  if (!holds) std::abort();
}

void put(const std::string& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

std::string read_all(LogStream& stream, bool grows) {
  std::string text;
  int64_t ns = 0;
  while (const auto block = stream.next(grows)) {
    require(block->ns >= ns);
    ns = block->ns;
    if (block->kind == LogBlock::Kind::lines) {
      require(!block->text.empty());
      text += block->text;
    }
  }
  return text;
}

void read_streams(std::string_view bytes) {
  const size_t times = std::min<size_t>(bytes.size(), static_cast<uint8_t>(bytes[0]));
  const std::string_view first_times = bytes.substr(1).substr(0, times / 2);
  const std::string_view last_times = bytes.substr(std::min(bytes.size(), 1 + times / 2)).substr(0, times / 2);
  const std::string_view text = bytes.substr(times);
  const std::string_view first = text.substr(0, text.size() / 2), last = text.substr(text.size() / 2);
  const LogFiles files{folder(), "stdout"};
  // Half of the inputs get a valid magic.
  const std::string magic(text.size() % 2 == 0 ? kTimesMagic : "");
  put(files.path(3), first);
  put(files.path(LogFiles::kCurrent), last);
  put(files.times_path(3), magic + std::string(first_times));
  put(files.times_path(LogFiles::kCurrent), magic + std::string(last_times));
  LogStream whole(files);
  const std::string growing = read_all(whole, true);
  require(growing + read_all(whole, false) == text);
  LogStream tail(files);
  tail.skip_to_last(static_cast<uint8_t>(bytes[0]) % 8);
  require(text.ends_with(read_all(tail, false)));
  LogStream since(files);
  since.skip_until(static_cast<int64_t>(times) << 48);
  require(text.ends_with(read_all(since, false)));
}

template <class Parse>
void parse(const Parse& read) {
  try {
    read();
  } catch (const std::invalid_argument&) {
    // The text is invalid.
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  if (bytes[0] == 'r') {
    parse([&] { (void)parse_ranks(bytes.substr(1, 20)); });
  } else if (bytes[0] == 's') {
    parse([&] { (void)parse_since(bytes.substr(1, 60), int64_t{1'769'866'200'000'000'000}); });
  } else {
    read_streams(bytes);
  }
  return 0;
}
