// libFuzzer target: any bytes are read as a wav or flac file all of whose samples can be decoded, or cause an EnvError.
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/train/data/sound_file.h"

namespace {

namespace fs = std::filesystem;

const fs::path& sound_path() {
  static const fs::path path = [] {
    const fs::path base = fs::exists("/dev/shm") ? "/dev/shm" : fs::temp_directory_path();
    static const fs::path made = base / ("trainctl_fuzz_sound." + std::to_string(getpid()));
    std::atexit([] {
      std::error_code ignored;
      fs::remove(made, ignored);
    });
    return made;
  }();
  return path;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::ofstream(sound_path(), std::ios::binary | std::ios::trunc)
      .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  constexpr float kUnset = 12345;
  for (const int64_t rate : {8000, 16000, 44100}) {
    std::vector<float> samples(5000, kUnset);
    try {
      trainctl::read_sound(sound_path().string(), rate, samples);
    } catch (const trainctl::EnvError&) {
      continue;
    }
    if (samples.back() == kUnset) abort();  // each sample is written, or zero behind the end
  }
  return 0;
}
