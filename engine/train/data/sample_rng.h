// The random numbers of one sample's transforms. They depend on (seed, pass, sample) alone, so a sample looks the same
// for any number of workers, under any plan, and after a resume.
#pragma once

#include <cstdint>

#include "engine/base/text.h"
#include "engine/ops/random.h"

namespace trainctl {

class SampleRng {
 public:
  SampleRng() = default;
  /// `pass` counts passes over the set, over the whole run: SampleOrder.
  SampleRng(uint64_t seed, uint64_t pass, int64_t sample)
      : key_(stream_key(stream_key(seed, stable_hash("dataset.transforms")), pass)),
        sample_(static_cast<uint64_t>(sample)) {}

  /// Random numbers of a whole batch: the `number`th of an epoch.
  static SampleRng of_batch(uint64_t seed, int64_t epoch, int64_t number) {
    SampleRng rng;
    rng.key_ = stream_key(stream_key(seed, stable_hash("dataset.batches")), static_cast<uint64_t>(epoch));
    rng.sample_ = static_cast<uint64_t>(number);
    return rng;
  }

  /// Random numbers of another sample in the same pass, from their start.
  SampleRng of(int64_t sample) const {
    SampleRng other;
    other.key_ = key_;
    other.sample_ = static_cast<uint64_t>(sample);
    return other;
  }

  /// Random numbers of a sample of a source of a mixture, in the same pass: they depend on the source's name and the
  /// number of the sample in it, not on the other sources.
  SampleRng of_source(uint64_t source, int64_t sample) const {
    SampleRng other = of(sample);
    other.key_ = stream_key(key_, source);
    return other;
  }

  uint32_t next() { return philox(key_, at_ >> 2, sample_).v[at_++ & 3]; }
  /// Returns a number in [0, 1) with 24 bits.
  double uniform() { return static_cast<double>(next() >> 8) * 0x1p-24; }
  double uniform(double from, double to) { return from + (to - from) * uniform(); }
  /// Returns an integer in [0, below), where `below` is at least 1 and at most 2^32.
  int64_t integer(int64_t below) {
    return static_cast<int64_t>((uint64_t{next()} * static_cast<uint64_t>(below)) >> 32);
  }

 private:
  uint64_t key_ = 0, sample_ = 0, at_ = 0;
};

}  // namespace trainctl
