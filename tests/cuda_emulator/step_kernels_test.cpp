// The small kernels around a step, sums of peers' gradients and initial weights, on the emulated GPU.
#include "engine/runtime/cuda/step_kernels.h"

#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "engine/graph/half.h"
#include "engine/ops/random.h"
#include "engine/runtime/byte_table.h"
#include "engine/runtime/cuda/initial_weights_cuda.h"
#include "engine/runtime/cuda/peer_sums.h"
#include "engine/runtime/initial_weights.h"

namespace trainctl {
namespace {

void must(cudaError_t status) { REQUIRE_MESSAGE(status == cudaSuccess, cudaGetErrorString(status)); }

/// Bytes in device memory, all of them written.
class Bytes {
 public:
  explicit Bytes(const std::vector<std::byte>& bytes) : bytes_(bytes.size()) {
    must(cudaMalloc(&data_, bytes_));
    must(cudaMemcpy(data_, bytes.data(), bytes_, cudaMemcpyHostToDevice));
  }
  explicit Bytes(size_t bytes) : Bytes(std::vector<std::byte>(bytes)) {}
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;
  ~Bytes() { cudaFree(data_); }
  std::byte* at(size_t place = 0) const { return static_cast<std::byte*>(data_) + place; }
  std::vector<std::byte> now() const {
    std::vector<std::byte> bytes(bytes_);
    must(cudaMemcpy(bytes.data(), data_, bytes_, cudaMemcpyDeviceToHost));
    return bytes;
  }
  template <class T>
  T read(size_t place) const {
    T value;
    must(cudaMemcpy(&value, at(place), sizeof value, cudaMemcpyDeviceToHost));
    return value;
  }

 private:
  void* data_ = nullptr;
  size_t bytes_;
};

class Pinned {
 public:
  explicit Pinned(size_t bytes) {
    must(cudaHostAlloc(&data_, bytes, cudaHostAllocDefault));
    std::memset(data_, 0, bytes);
  }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  ~Pinned() { cudaFreeHost(data_); }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
};

std::vector<std::byte> random_bytes(size_t n, uint64_t key) {
  std::vector<std::byte> bytes(n);
  for (size_t i = 0; i < n; ++i) bytes[i] = static_cast<std::byte>(256 * philox_uniform(key, i, 0));
  return bytes;
}

}  // namespace

TEST_CASE("cuda: floats are made of a slot's bytes by one table per channel, in either layout and type") {
  constexpr int64_t kSamples = 3, kPixels = 35, kChannels = 3, kAll = kSamples * kPixels * kChannels;
  constexpr int64_t kStride = 512, kFrom = 64;
  const std::vector<std::byte> staged = random_bytes(2 * kStride, 7);
  std::vector<float> values(kChannels * ByteTable::kValues);
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i)) * 3;
  std::vector<std::byte> value_bytes(values.size() * sizeof(float));
  std::memcpy(value_bytes.data(), values.data(), value_bytes.size());
  const Bytes staging(staged), table(value_bytes), counter(sizeof(cuda::StepCounter));
  cuda::Staging from;
  from.counter = reinterpret_cast<cuda::StepCounter*>(counter.at());
  from.slots = 2;
  from.ahead = 1;  // the second slot
  from.base = staging.at();
  from.stride = kStride;
  for (const bool from_planes : {false, true})
    for (const bool to_planes : {false, true})
      for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
        CAPTURE(from_planes);
        CAPTURE(to_planes);
        CAPTURE(to_string(type));
        const auto element = static_cast<size_t>(byte_size(type));
        const Bytes to(kAll * element);
        cuda::enqueue_bytes(from,
                            {kFrom, to.at(), type, kSamples, kPixels, kChannels, from_planes, to_planes,
                             reinterpret_cast<const float*>(table.at())},
                            nullptr);
        must(cudaDeviceSynchronize());
        std::vector<std::byte> expected(kAll * element);
        for (int64_t s = 0; s < kSamples; ++s)
          for (int64_t c = 0; c < kChannels; ++c)
            for (int64_t p = 0; p < kPixels; ++p) {
              const int64_t in = s * kPixels * kChannels + (from_planes ? c * kPixels + p : p * kChannels + c);
              const int64_t out = s * kPixels * kChannels + (to_planes ? c * kPixels + p : p * kChannels + c);
              const auto byte = static_cast<size_t>(staged[static_cast<size_t>(kStride + kFrom + in)]);
              const float value = values[static_cast<size_t>(c * ByteTable::kValues) + byte];
              const uint16_t rounded = type == DType::f16 ? to_f16(value) : to_bf16(value);
              std::memcpy(&expected[static_cast<size_t>(out) * element],
                          is_half(type) ? static_cast<const void*>(&rounded) : &value, element);
            }
        CHECK(to.now() == expected);
      }
}

TEST_CASE("cuda: each step of a graph reads its own data and scalars, and writes its own loss") {
  constexpr int64_t kSlots = 5, kAtOnce = 3, kStride = 4096, kScalars = 4032, kNumbers = 3008;
  constexpr int64_t kRows = 37, kRowBytes = 12, kGathered = 29;
  std::vector<std::byte> staged = random_bytes(kSlots * kStride, 1);
  for (int64_t s = 0; s < kSlots; ++s) {
    for (int32_t i = 0; i < kGathered; ++i) {
      const auto row = static_cast<int32_t>((s * 11 + i * 7) % kRows);
      std::memcpy(&staged[static_cast<size_t>(s * kStride + kNumbers + 4 * i)], &row, 4);
    }
  }
  const std::vector<std::byte> table_bytes = random_bytes(kRows * kRowBytes, 2);
  const Bytes table(table_bytes), counter(sizeof(cuda::StepCounter)), scalars(sizeof(StepScalars)),
      reported(3 * sizeof(float));
  const Bytes whole(2944), odd(1001), gathered(kGathered * kRowBytes);
  const Pinned metrics(kSlots * kMostMetrics * sizeof(float));
  const Pinned finished(kSlots * sizeof(uint64_t)), position(sizeof(uint64_t)), printed(kSlots * 64);
  uint64_t step = 0;
  for (int graph = 0; graph < 4; ++graph) {
    for (int64_t ahead = 0; ahead < kAtOnce; ++ahead, ++step) {
      const auto slot = static_cast<size_t>(step % kSlots * kStride);
      StepScalars now;
      now.learning_rate = 0.5f + static_cast<float>(step);
      now.step = static_cast<uint32_t>(100 + step);
      std::memcpy(&staged[slot + kScalars], &now, sizeof now);
      const Bytes staging(staged);
      cuda::Staging from;
      from.counter = reinterpret_cast<cuda::StepCounter*>(counter.at());
      from.slots = kSlots;
      from.ahead = ahead;
      from.base = staging.at();
      from.stride = kStride;
      from.scalars = kScalars;
      cuda::FirstCopies copies;
      copies.list[0] = {0, whole.at(), 2944, nullptr, 0};
      copies.list[1] = {3, odd.at(), 1001, nullptr, 0};
      copies.list[2] = {kNumbers, gathered.at(), kGathered * kRowBytes, table.at(), kRowBytes};
      copies.count = 3;
      const cuda::Reported numbers{reinterpret_cast<const float*>(reported.at()), 2};
      cuda::enqueue_begin_step(from, copies, reinterpret_cast<StepScalars*>(scalars.at()), position.as<uint64_t>(),
                               numbers, nullptr);
      must(cudaDeviceSynchronize());
      CHECK(whole.now() == std::vector<std::byte>(staged.begin() + static_cast<std::ptrdiff_t>(slot),
                                                  staged.begin() + static_cast<std::ptrdiff_t>(slot) + 2944));
      CHECK(odd.now() == std::vector<std::byte>(staged.begin() + static_cast<std::ptrdiff_t>(slot) + 3,
                                                staged.begin() + static_cast<std::ptrdiff_t>(slot) + 1004));
      const std::vector<std::byte> rows = gathered.now();
      for (int32_t i = 0; i < kGathered; ++i) {
        int32_t row = 0;
        std::memcpy(&row, &staged[slot + kNumbers + 4 * static_cast<size_t>(i)], 4);
        CHECK(std::memcmp(&rows[static_cast<size_t>(i) * kRowBytes], &table_bytes[static_cast<size_t>(row) * kRowBytes],
                          kRowBytes) == 0);
      }
      CHECK(scalars.read<StepScalars>(0).step == now.step);
      CHECK(scalars.read<StepScalars>(0).learning_rate == now.learning_rate);
      CHECK(*position.as<uint64_t>() == (uint64_t{now.step + 1} << 32));
      cuda::enqueue_position(reinterpret_cast<StepScalars*>(scalars.at()), 17, position.as<uint64_t>(), nullptr);
      const float one = 0.25f * static_cast<float>(step + 1), values[] = {one, one + 1, one + 2};
      must(cudaMemcpy(reported.at(), values, sizeof values, cudaMemcpyHostToDevice));
      cuda::enqueue_print(from, whole.at(), printed.as<std::byte>(), 64, 61, nullptr);
      must(cudaDeviceSynchronize());
      CHECK(*position.as<uint64_t>() == (uint64_t{now.step + 1} << 32 | 17));
      CHECK(std::memcmp(printed.as<std::byte>() + step % kSlots * 64, whole.now().data(), 61) == 0);
    }
    cuda::Slots slots;
    slots.counter = reinterpret_cast<cuda::StepCounter*>(counter.at());
    slots.slots = kSlots;
    slots.ahead = kAtOnce - 1;
    cuda::enqueue_end_step(slots, {reinterpret_cast<const float*>(reported.at()), 2},
                           {finished.as<uint64_t>(), metrics.as<float>()}, nullptr);
    must(cudaDeviceSynchronize());
    CHECK(counter.read<uint64_t>(0) == step);
    for (uint64_t s = step - kAtOnce; s < step; ++s) {
      const uint64_t word = finished.as<uint64_t>()[s % kSlots];
      const auto bits = static_cast<uint32_t>(word);
      float value = 0;
      std::memcpy(&value, &bits, sizeof value);
      CHECK((word >> 32) == s + 1);
      CHECK(value == 0.25f * static_cast<float>(s + 1));
      CHECK(metrics.as<float>()[s % kSlots * kMostMetrics] == value + 1);
      CHECK(metrics.as<float>()[s % kSlots * kMostMetrics + 1] == value + 2);
    }
  }
}

TEST_CASE("cuda: sums of peers have the bits of sums in order, in f32 and bf16, aligned or not") {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const auto each = static_cast<size_t>(byte_size(dtype));
    for (const int summands : {1, 2, 3, 4, 8, 16}) {
      for (const int64_t count : {1, 8, 1000, 4096, 4099}) {
        for (const size_t past : {size_t{0}, size_t{4}}) {
          CAPTURE(summands);
          CAPTURE(count);
          const size_t bytes = static_cast<size_t>(count) * each, apart = (bytes + 31) / 16 * 16;
          std::vector<std::byte> in(apart * static_cast<size_t>(summands));
          std::vector<float> expected(static_cast<size_t>(count));
          for (int s = 0; s < summands; ++s) {
            for (size_t i = 0; i < expected.size(); ++i) {
              float v = 2.0f * philox_uniform(static_cast<uint64_t>(s), i, 0) - 1.0f;
              std::byte* to = &in[apart * static_cast<size_t>(s) + past + i * each];
              if (dtype == DType::f32) {
                std::memcpy(to, &v, 4);
              } else {
                const uint16_t rounded = to_bf16(v);
                std::memcpy(to, &rounded, 2);
                v = from_bf16(rounded);
              }
              expected[i] = s == 0 ? v : expected[i] + v;
            }
          }
          const Bytes memory(in);
          cuda::PeerSum sum;
          for (int s = 0; s < summands; ++s)
            sum.in[static_cast<size_t>(s)] = memory.at(apart * static_cast<size_t>(s) + past);
          sum.summands = summands;
          sum.out = memory.at(past);  // one of the inputs
          sum.count = count;
          sum.dtype = dtype;
          cuda::enqueue_sum(sum, nullptr);
          must(cudaDeviceSynchronize());
          const std::vector<std::byte> got = memory.now();
          bool same = true;
          for (size_t i = 0; i < expected.size(); ++i) {
            const uint16_t rounded = to_bf16(expected[i]);
            same &= std::memcmp(&got[past + i * each],
                                dtype == DType::f32 ? static_cast<const void*>(&expected[i]) : &rounded, each) == 0;
          }
          CHECK(same);
          CHECK(std::equal(got.begin() + static_cast<std::ptrdiff_t>(past + bytes), got.end(),
                           in.begin() + static_cast<std::ptrdiff_t>(past + bytes)));
        }
      }
    }
  }
}

TEST_CASE("cuda: initial weights are the CPU's, normal ones within an ulp") {
  Program program;
  int64_t end = 0;
  for (const Init::Kind kind : {Init::Kind::constant, Init::Kind::uniform, Init::Kind::normal}) {
    Variable v;
    v.name = "w" + std::to_string(static_cast<int>(kind));
    v.init = {kind, 0.3};
    v.global_shape = {40, 61};
    v.shape = {13, 30};
    v.offset = {20, 7};
    v.arena_offset = end;
    end += num_elements(v.shape) * 4;
    program.variables.push_back(v);
  }
  std::vector<std::byte> expected(static_cast<size_t>(end));
  write_initial_weights(program, 42, expected.data());
  const Bytes arena(expected.size());
  cuda::enqueue_initial_weights(program, 42, arena.at(), nullptr);
  must(cudaDeviceSynchronize());
  const std::vector<std::byte> got = arena.now();
  for (size_t i = 0; i < expected.size(); i += 4) {
    float a = 0, b = 0;
    std::memcpy(&a, &expected[i], 4);
    std::memcpy(&b, &got[i], 4);
    const float ulp = std::nextafter(std::fabs(a), INFINITY) - std::fabs(a);
    CHECK(std::fabs(a - b) <= (i < expected.size() * 2 / 3 ? 0.0f : ulp));
  }
}

}  // namespace trainctl
