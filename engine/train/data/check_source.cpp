// Reads all samples of a set, to report what it contains and which samples cannot be read.
#include "engine/train/data/check_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>

#include "engine/base/error.h"
#include "engine/graph/bf16.h"
#include "engine/train/data/elements.h"

namespace trainctl {
namespace {

constexpr int64_t kCheckedBlock = 64;  ///< samples that a thread takes at once

void count_value(FieldReport& report, int64_t value, int64_t samples) {
  if (report.many_values) return;
  report.classes[value] += samples;
  if (report.classes.size() <= kMostCountedValues) return;
  report.many_values = true;
  report.classes.clear();
}

void widen(FieldReport& report, const Shape& least, const Shape& most) {
  if (report.least.empty()) {
    report.least = least;
    report.most = most;
    return;
  }
  for (size_t d = 0; d < least.size(); ++d) {
    report.least[d] = std::min(report.least[d], least[d]);
    report.most[d] = std::max(report.most[d], most[d]);
  }
}

/// Results of one thread, to be combined by report().
struct Seen {
  int64_t samples = 0;
  std::vector<FieldReport> fields;
  std::vector<BrokenSample> broken;

  void add_bytes(size_t field, int64_t least, int64_t most, int64_t total) {
    FieldReport& report = fields[field];
    report.least_bytes = report.total_bytes == 0 ? least : std::min(report.least_bytes, least);
    report.most_bytes = std::max(report.most_bytes, most);
    report.total_bytes += total;
  }
};

class Check {
 public:
  Check(const Source& source, const CheckOptions& options) : source_(source), options_(options) {}

  SourceReport run() {
    std::vector<Seen> seen(static_cast<size_t>(std::max(1, options_.threads)));
    std::vector<std::jthread> threads;
    for (size_t t = 1; t < seen.size(); ++t) threads.emplace_back([this, &seen, t] { work(seen[t]); });
    work(seen[0]);
    threads.clear();  // joins
    if (failure_) std::rethrow_exception(failure_);
    return report(seen);
  }

 private:
  void work(Seen& seen) {
    seen.fields.resize(source_.fields().size());
    std::vector<FieldBytes> bytes(seen.fields.size());
    try {
      for (int64_t first; !stopped_ && (first = next_.fetch_add(kCheckedBlock)) < source_.size();) {
        const size_t before = seen.broken.size();
        const int64_t end = std::min(first + kCheckedBlock, source_.size());
        for (int64_t sample = first; sample < end; ++sample) look_at(sample, bytes, seen);
        progress(end - first, static_cast<int64_t>(seen.broken.size() - before));
      }
    } catch (...) {  // The error is not the fault of a sample.
      const std::lock_guard lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
      stopped_ = true;
    }
  }

  void look_at(int64_t sample, std::vector<FieldBytes>& bytes, Seen& seen) {
    ++seen.samples;
    try {
      const std::vector<SourceField>& fields = source_.fields();
      source_.read(sample, std::vector<bool>(fields.size(), true), bytes);
      std::vector<Shape> shapes(fields.size());
      for (size_t f = 0; f < fields.size(); ++f)
        if (fields[f].encoding == Encoding::image && options_.image_shape) shapes[f] = options_.image_shape(bytes[f]);
      for (size_t f = 0; f < fields.size(); ++f) require_i32(fields[f], bytes[f], sample);
      for (size_t f = 0; f < fields.size(); ++f) add(fields[f], bytes[f], shapes[f], seen, f);
      for (size_t f = 0; f < fields.size(); ++f) look_for_not_finite(fields[f], bytes[f], sample, seen.fields[f]);
    } catch (const EnvError& error) {
      seen.broken.push_back({sample, {}, error.what()});
    }
  }

  /// Requires that a run can convert the integers of the field to i32, which the network reads.
  void require_i32(const SourceField& field, const FieldBytes& bytes, int64_t sample) const {
    if (field.encoding == Encoding::image || field.type != ElementType::i64) return;
    const auto count = static_cast<int64_t>(bytes.size()) / byte_size(field.type);
    std::vector<int32_t> values(static_cast<size_t>(count));
    try {
      convert_elements(bytes.data(), field.type, count, DType::i32, values.data());
    } catch (const EnvError& error) {
      throw EnvError(source_.where(sample) + ": " + field.name + ": " + error.what());
    }
  }

  static void look_for_not_finite(const SourceField& field, const FieldBytes& bytes, int64_t sample,
                                  FieldReport& report) {
    const bool is_bf16 = field.type == ElementType::bf16;
    if (field.encoding == Encoding::image || (field.type != ElementType::f32 && !is_bf16)) return;
    const auto width = static_cast<size_t>(byte_size(field.type));
    for (size_t i = 0; i < bytes.size() / width; ++i) {
      float value = 0;
      if (is_bf16) {
        uint16_t bits = 0;
        std::memcpy(&bits, bytes.data() + i * width, width);
        value = from_bf16(bits);
      } else {
        std::memcpy(&value, bytes.data() + i * width, width);
      }
      if (std::isfinite(value)) continue;
      add_not_finite(report, 1, {sample, {}, fmt::format("element {} is {}", i, value)});
      return;
    }
  }

  static void add_not_finite(FieldReport& report, int64_t samples, const BrokenSample& first) {
    if (report.not_finite == 0 || first.sample < report.first_not_finite.sample) report.first_not_finite = first;
    report.not_finite += samples;
  }

  static void add(const SourceField& field, const FieldBytes& bytes, const Shape& shape, Seen& seen, size_t f) {
    const auto size = static_cast<int64_t>(bytes.size());
    seen.add_bytes(f, size, size, size);
    if (!shape.empty()) widen(seen.fields[f], shape, shape);
    const bool is_integer = field.type != ElementType::f32 && field.type != ElementType::bf16;
    if (field.encoding == Encoding::image || !field.shape.empty() || !is_integer) return;
    count_value(seen.fields[f], integer_of(field.type, bytes), 1);
  }

  static int64_t integer_of(ElementType type, const FieldBytes& bytes) {
    int64_t value = 0;
    std::memcpy(&value, bytes.data(), bytes.size());
    return type == ElementType::i32 ? static_cast<int32_t>(value) : value;
  }

  void progress(int64_t samples, int64_t broken) {
    const std::lock_guard lock(mutex_);
    done_ += samples;
    broken_ += broken;
    if (options_.on_progress && !options_.on_progress(done_, broken_)) stopped_ = true;
  }

  /// Combines what the threads have seen.
  SourceReport report(std::vector<Seen>& seen) const {
    Seen all;
    all.fields.resize(source_.fields().size());
    for (Seen& one : seen) {
      all.samples += one.samples;
      std::move(one.broken.begin(), one.broken.end(), std::back_inserter(all.broken));
      for (size_t f = 0; f < one.fields.size(); ++f) {
        const FieldReport& part = one.fields[f];
        if (part.total_bytes > 0) all.add_bytes(f, part.least_bytes, part.most_bytes, part.total_bytes);
        if (!part.least.empty()) widen(all.fields[f], part.least, part.most);
        if (part.not_finite > 0) add_not_finite(all.fields[f], part.not_finite, part.first_not_finite);
        for (const auto& [value, samples] : part.classes) count_value(all.fields[f], value, samples);
        if (!part.many_values) continue;
        all.fields[f].many_values = true;
        all.fields[f].classes.clear();
      }
    }
    SourceReport report{all.samples, static_cast<int64_t>(all.broken.size()), std::move(all.broken),
                        std::move(all.fields)};
    std::sort(report.first_broken.begin(), report.first_broken.end(),
              [](const BrokenSample& a, const BrokenSample& b) { return a.sample < b.sample; });
    report.first_broken.resize(std::min(report.first_broken.size(), options_.most_listed));
    for (BrokenSample& broken : report.first_broken) broken.where = where(broken.sample);
    for (FieldReport& field : report.fields)
      if (field.not_finite > 0) field.first_not_finite.where = where(field.first_not_finite.sample);
    return report;
  }

  std::string where(int64_t sample) const {
    try {
      return source_.where(sample);
    } catch (const EnvError& error) {  // If the name of the sample cannot be read, the file that has the name is broken
                                       // too.
      return error.what();
    }
  }

  const Source& source_;
  const CheckOptions& options_;
  std::atomic<int64_t> next_ = 0;
  std::atomic<bool> stopped_ = false;
  std::mutex mutex_;
  int64_t done_ = 0, broken_ = 0;
  std::exception_ptr failure_;
};

}  // namespace

SourceReport check_source(const Source& source, const CheckOptions& options) { return Check(source, options).run(); }

}  // namespace trainctl
