// Decodes wav and flac files with libsndfile, which is opened at first use.
#include "engine/train/data/sound_file.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <sndfile.h>

#include <algorithm>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/base/text.h"

namespace trainctl {
namespace {

/// The functions of libsndfile that are used.
struct SoundLibrary {
  decltype(&sf_open) open = nullptr;
  decltype(&sf_close) close = nullptr;
  decltype(&sf_readf_float) read = nullptr;
  decltype(&sf_strerror) error = nullptr;

  SoundLibrary() {
    void* handle = dlopen("libsndfile.so.1", RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr)
      throw EnvError("wav and flac files need libsndfile (Debian package libsndfile1): " + std::string(dlerror()));
    const auto bind = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
      if (function == nullptr) throw EnvError(std::string("libsndfile has no function ") + name);
    };
    bind(open, "sf_open");
    bind(close, "sf_close");
    bind(read, "sf_readf_float");
    bind(error, "sf_strerror");
  }
};

const SoundLibrary& sound_library() {
  static const SoundLibrary library;
  return library;
}

struct OpenSound {
  explicit OpenSound(const std::string& path) : file(sound_library().open(path.c_str(), SFM_READ, &info)) {
    if (file == nullptr) throw EnvError(path + ": cannot be decoded: " + printable(sound_library().error(nullptr)));
  }
  ~OpenSound() { sound_library().close(file); }
  OpenSound(const OpenSound&) = delete;
  OpenSound& operator=(const OpenSound&) = delete;

  SF_INFO info{};
  SNDFILE* file;
};

}  // namespace

void read_sound(const std::string& path, int64_t sample_rate, std::span<float> out) {
  const OpenSound sound(path);
  if (sound.info.samplerate != sample_rate)
    throw EnvError(fmt::format(
        "{}: has {} samples per second, but dataset.sample_rate is {}; resample the file, or change the field", path,
        with_commas(int64_t{sound.info.samplerate}), with_commas(sample_rate)));
  const int64_t channels = sound.info.channels;
  constexpr int64_t kMostChannels = 1024;
  if (channels < 1 || channels > kMostChannels) throw EnvError(fmt::format("{}: has {} channels", path, channels));
  constexpr int64_t kAtOnce = 4096;  // frames
  std::vector<float> part(static_cast<size_t>(kAtOnce * channels));
  const auto wanted = static_cast<int64_t>(out.size());
  int64_t done = 0;
  while (done < wanted) {
    const int64_t got = sound_library().read(sound.file, part.data(), std::min(kAtOnce, wanted - done));
    if (got <= 0) break;
    for (int64_t frame = 0; frame < got; ++frame) {
      float sum = 0;
      for (int64_t c = 0; c < channels; ++c) sum += part[static_cast<size_t>(frame * channels + c)];
      out[static_cast<size_t>(done + frame)] = sum / static_cast<float>(channels);
    }
    done += got;
  }
  if (done < std::min<int64_t>(wanted, sound.info.frames))
    throw EnvError(fmt::format("{}: is truncated: {} of {} samples can be decoded", path, with_commas(done),
                               with_commas(int64_t{sound.info.frames})));
  std::fill(out.begin() + done, out.end(), 0.0f);
}

}  // namespace trainctl
