// State of one worker while it reads samples.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/train/data/sample_rng.h"
#include "engine/train/data/sample_transforms.h"
#include "engine/train/data/source.h"

namespace trainctl {

/// The stages of a worker's work on a sample, in order. `copy`: it is converted and written into the batch.
enum class ReadStage : uint8_t { read, decode, transform, copy };
inline constexpr size_t kReadStages = 4;
constexpr std::string_view to_string(ReadStage stage) {
  constexpr std::string_view kNames[] = {"read", "decode", "transform", "copy"};
  return kNames[static_cast<size_t>(stage)];
}

/// Seconds of each stage.
struct StageSeconds {
  std::array<double, kReadStages> of{};

  double& operator[](ReadStage stage) { return of[static_cast<size_t>(stage)]; }
  double operator[](ReadStage stage) const { return of[static_cast<size_t>(stage)]; }
  double sum() const { return of[0] + of[1] + of[2] + of[3]; }
  void add(const StageSeconds& other) {
    for (size_t i = 0; i < kReadStages; ++i) of[i] += other.of[i];
  }
  StageSeconds since(const StageSeconds& before) const {
    StageSeconds difference;
    for (size_t i = 0; i < kReadStages; ++i) difference.of[i] = of[i] - before.of[i];
    return difference;
  }
  ReadStage slowest() const {
    size_t most = 0;
    for (size_t i = 1; i < kReadStages; ++i)
      if (of[i] > of[most]) most = i;
    return static_cast<ReadStage>(most);
  }
};

/// Adds the time during which it exists to one stage.
class StageTimer {
 public:
  StageTimer(StageSeconds& seconds, ReadStage stage) : seconds_(seconds), stage_(stage) {}
  ~StageTimer() { next(stage_); }
  StageTimer(const StageTimer&) = delete;
  StageTimer& operator=(const StageTimer&) = delete;
  /// Ends the current stage and begins `stage`.
  void next(ReadStage stage) {
    const auto now = std::chrono::steady_clock::now();
    seconds_[std::exchange(stage_, stage)] += std::chrono::duration<double>(now - std::exchange(start_, now)).count();
  }

 private:
  StageSeconds& seconds_;
  ReadStage stage_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// The result of dataset.on_error: skip.
struct SkippedSamples {
  int64_t count = 0;
  std::string first;  ///< the error of the first
};

/// State of one worker: its scratch memory, which grows to the largest sample, and the random numbers of the sample at
/// hand.
struct ReadState {
  SampleRng rng;
  TransformScratch transforms;
  std::vector<std::byte> bytes;                  ///< bytes of one field, before transforms
  std::vector<uint8_t> tokens;                   ///< bytes of a window, as it is in its file
  std::vector<FieldBytes> files;                 ///< bytes of a Source's fields
  std::vector<bool> wanted;                      ///< whether each of a Source's fields is read
  std::vector<std::vector<std::byte>> unwanted;  ///< fields that are read only to see whether they can be
  std::vector<void*> all;                        ///< where all fields of a sample go
  std::vector<std::vector<std::byte>> before;    ///< fields before the transforms that draw
  std::vector<void*> to_before;                  ///< where fields go that have such transforms
  StageSeconds seconds;                          ///< seconds of all samples so far
};

}  // namespace trainctl
