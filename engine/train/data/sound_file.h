// Decodes wav and flac files with libsndfile, which is opened at first use.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace trainctl {

/// Reads the first samples of a file, averaged over its channels, in the range from -1 to 1. Zeros follow the end of
/// the file. Throws EnvError if the file cannot be read, has another sample rate, or if libsndfile is missing.
void read_sound(const std::string& path, int64_t sample_rate, std::span<float> out);

}  // namespace trainctl
