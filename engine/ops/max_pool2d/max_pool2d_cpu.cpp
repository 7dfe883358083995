// y = the largest x of each window; dx = dy at the first largest. For a row of windows, first the largest of each
// column over the windows' rows, which are long vectors, then of each window's columns.
#include <limits>
#include <memory>
#include <vector>

#include "engine/ops/cpu/scratch_cpu.h"
#include "engine/ops/cpu/windows_cpu.h"

namespace trainctl {
namespace {

using cpu::Pool;

constexpr float kLowest = -std::numeric_limits<float>::infinity();
constexpr int32_t kNone = 1 << 30;  ///< the number of a pixel of the padding: after all others

/// A NaN is larger than any number, and the first one stays. No branches, so that loops become vectors.
inline bool is_larger(float x, float best) { return (x > best) | ((x != x) & (best == best)); }
inline bool is_as_large(float x, float best) { return (x == best) | ((x != x) & (best != best)); }

/// The columns of a piece of an image that one row of windows covers, including columns of the padding. The largest
/// elements are computed in runs. With many channels, a run is the channels of one window. With few channels, a single
/// run has all places where a window could begin, and the actual windows are spacing() elements apart in it.
class MaxPool {
 public:
  explicit MaxPool(const Pool& pool)
      : pool_(pool),
        channels_(pool.channels()),
        windows_(pool.y.size[1]),
        columns_((windows_ - 1) * pool.window.stride[1] + pool.window.reach(1)),
        inside_(std::min(pool.x.size[1], columns_ - pool.window.before[1])) {}

 protected:
  int64_t in_columns() const { return columns_ * channels_; }
  /// The range of the numbers of columns that are inside the image.
  int64_t first_inside() const { return pool_.window.before[1] * channels_; }
  int64_t num_inside() const { return inside_ * channels_; }

  bool as_one_run() const { return channels_ < kVector; }
  int64_t step() const { return pool_.window.stride[1] * channels_; }
  int64_t spacing() const { return as_one_run() ? step() : channels_; }
  int64_t dilation() const { return pool_.window.dilation[0]; }  ///< dilation of rows
  int64_t in_runs() const { return (windows_ - 1) * spacing() + channels_; }

  /// Calls f(place in the runs, place among the columns) for the windows' s-th columns.
  template <class F>
  void each_at_column(int64_t s, F f) const {
    const int64_t runs = as_one_run() ? 1 : windows_, run = as_one_run() ? in_runs() : channels_,
                  first = s * pool_.window.dilation[1] * channels_;
    for (int64_t q = 0; q < runs; ++q) {
      const int64_t to = q * channels_, from = first + q * step();
      for (int64_t i = 0; i < run; ++i) f(to + i, from + i);
    }
  }

  const Pool pool_;
  const int64_t channels_, windows_;

 private:
  static constexpr int64_t kVector = 8;
  const int64_t columns_, inside_;
};

class Forward : public MaxPool {
 public:
  explicit Forward(const KernelCall& call)
      : MaxPool(Pool::of(call, call.in[0], call.out[0])), x_(call.in[0].as<float>()), y_(call.out[0].as<float>()) {
    scratch_->reserve(pool_.parts() * of_part());
  }

  void operator()() const {
    pool_.each_piece([this](int part, int64_t of_x, int64_t of_y) {
      float *const columns = scratch_->data() + part * of_part(), *const runs = columns + in_columns();
      std::fill_n(columns, in_columns(), kLowest);
      for (int64_t p = 0; p < pool_.y.size[0]; ++p) {
        float* const y = y_ + of_y + p * windows_ * channels_;
        over_rows(x_ + of_x, pool_.span(0, p), columns + first_inside());
        over_columns(columns, as_one_run() ? runs : y);
        if (as_one_run()) gather(runs, y);
      }
    });
  }

 private:
  int64_t of_part() const { return in_columns() + in_runs(); }

  void over_rows(const float* x, Pool::Span rows, float* columns) const {
    const int64_t n = num_inside();
    std::copy_n(x + pool_.at(rows.first, 0), n, columns);
    for (int64_t r = rows.first + dilation(); r < rows.end; r += dilation()) {
      const float* row = x + pool_.at(r, 0);
      for (int64_t i = 0; i < n; ++i) columns[i] = is_larger(row[i], columns[i]) ? row[i] : columns[i];
    }
  }

  void over_columns(const float* columns, float* runs) const {
    each_at_column(0, [=](int64_t to, int64_t from) { runs[to] = columns[from]; });
    for (int64_t s = 1; s < pool_.window.kernel[1]; ++s) {
      each_at_column(s, [=](int64_t to, int64_t from) {
        const float x = columns[from], best = runs[to];
        runs[to] = is_larger(x, best) ? x : best;
      });
    }
  }

  void gather(const float* runs, float* y) const {
    const int64_t channels = channels_, spacing = this->spacing();
    for (int64_t i = 0; i < channels; ++i)
      for (int64_t q = 0; q < windows_; ++q) y[q * channels + i] = runs[q * spacing + i];
  }

  const float* x_;
  float* y_;
  std::shared_ptr<cpu::Scratch> scratch_ = cpu::scratch_of_this_thread();
};

/// The gradient. It finds the number of the largest pixel of each window; pixels are numbered row by row.
class Backward : public MaxPool {
 public:
  explicit Backward(const KernelCall& call)
      : MaxPool(Pool::of(call, call.in[1], call.in[0])),
        dy_(call.in[0].as<float>()),
        x_(call.in[1].as<float>()),
        dx_(call.out[0].as<float>()) {
    const auto& [rows, columns] = pool_.window.kernel;
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t s = 0; s < columns; ++s) offsets_.push_back(pool_.at(r * dilation(), s * pool_.window.dilation[1]));
    scratch_->reserve(pool_.parts() * of_part());
  }

  void operator()() const {
    pool_.each_piece([this](int part, int64_t of_x, int64_t of_y) {
      const Row row = row_of(part);
      std::fill_n(row.columns, in_columns(), kLowest);
      std::fill_n(row.pixels, in_columns(), kNone);
      std::fill_n(dx_ + of_x, channels_ * pool_.x.pixels(), 0.0f);
      for (int64_t p = 0; p < pool_.y.size[0]; ++p) {
        const Pool::Span rows = pool_.span(0, p);
        over_rows(x_ + of_x, rows, row);
        over_columns(row);
        add_row(dy_ + of_y + p * windows_ * channels_, row, dx_ + of_x + pool_.at(rows.first, 0));
      }
    });
  }

 private:
  /// The largest element so far, and the number of its pixel, for each column and for each element of the runs.
  struct Row {
    float *columns, *runs;
    int32_t *pixels, *largest;
  };

  int64_t of_part() const { return 2 * (in_columns() + in_runs()); }
  Row row_of(int part) const {
    float *const at = scratch_->data() + part * of_part(), *const numbers = at + of_part() / 2;
    return {at, at + in_columns(), reinterpret_cast<int32_t*>(numbers),
            reinterpret_cast<int32_t*>(numbers + in_columns())};
  }

  void over_rows(const float* x, Pool::Span rows, const Row& to) const {
    const int64_t n = num_inside();
    float* const best = to.columns + first_inside();
    int32_t* const pixels = to.pixels + first_inside();
    std::copy_n(x + pool_.at(rows.first, 0), n, best);
    std::fill_n(pixels, n, 0);
    for (int64_t r = rows.first + dilation(); r < rows.end; r += dilation()) {
      const float* row = x + pool_.at(r, 0);
      const auto pixel = static_cast<int32_t>((r - rows.first) / dilation() * pool_.window.kernel[1]);
      for (int64_t i = 0; i < n; ++i) {
        const bool larger = is_larger(row[i], best[i]);
        best[i] = larger ? row[i] : best[i];
        pixels[i] = larger ? pixel : pixels[i];
      }
    }
  }

  /// Among equal pixels, the first one counts, row by row, whatever the order of the columns.
  void over_columns(const Row& row) const {
    const auto [columns, best, pixels, largest] = row;
    each_at_column(0, [=](int64_t to, int64_t from) {
      best[to] = columns[from];
      largest[to] = pixels[from];
    });
    for (int32_t s = 1; s < static_cast<int32_t>(pool_.window.kernel[1]); ++s) {
      each_at_column(s, [=](int64_t to, int64_t from) {
        const float x = columns[from], b = best[to];
        const int32_t pixel = pixels[from] + s;
        const bool larger = is_larger(x, b) | (is_as_large(x, b) & (pixel < largest[to]));
        best[to] = larger ? x : b;
        largest[to] = larger ? pixel : largest[to];
      });
    }
  }

  /// Adds dy of a row of windows to the pixels that were the largest. `dx`: begins at the first image row of the
  /// windows.
  void add_row(const float* dy, const Row& row, float* dx) const {
    const int64_t *const offsets = offsets_.data(), channels = channels_;
    for (int64_t q = 0; q < windows_; ++q) {
      float* const to = dx + q * step() - first_inside();
      const float* const slopes = dy + q * channels;
      const int32_t* const largest = row.largest + q * spacing();
      for (int64_t i = 0; i < channels; ++i) to[offsets[largest[i]] + i] += slopes[i];
    }
  }

  const float *dy_, *x_;
  float* dx_;
  std::vector<int64_t> offsets_;  ///< offsets of a window's pixels from its first
  std::shared_ptr<cpu::Scratch> scratch_ = cpu::scratch_of_this_thread();
};

CpuKernel prepare_max_pool2d(const KernelCall& call) { return Forward(call); }
CpuKernel prepare_max_pool2d_grad(const KernelCall& call) { return Backward(call); }

}  // namespace

extern const CpuKernels max_pool2d_cpu = {{"max_pool2d", prepare_max_pool2d},
                                          {"max_pool2d_grad", prepare_max_pool2d_grad}};

}  // namespace trainctl
