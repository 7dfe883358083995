// Machines that come with the program. Their figures are those of data sheets times the part that is reached:
//
//   products       in bf16 the most that was found for any size: A100 267.9, H100 792.1 TFLOP/s, 86 and 80 % of the
//                  data sheets (github.com/stas00/ml-engineering, compute/accelerator, "Maximum Achievable Matmul
//                  FLOPS"); the same parts in tf32 and fp32. Sizes reach less: unmeasured_time.h
//   exponentials   a score takes one of 16 exponentials and four of 64 (H100: 128) fp32 operations of a clock and
//                  multiprocessor, at 1.41 (H100: 1.7) GHz (CUDA C++ Programming Guide, "Arithmetic Instructions")
//   memory         80 to 90 %
//   links          the part that NCCL's large collectives reach
//   memory taken   what the driver reported on H100s, beyond the plans (tests/bench/NOTEBOOK.md)
//
// Sources: NVIDIA H100 and H200 Tensor Core GPU data sheets (SXM), NVIDIA A100 data sheet (SXM, 80 GB), NVIDIA DGX
// H100, H200 and A100 system data sheets: 8 GPUs per host, NVLink 900 (A100: 600) GB/s both ways together, a ConnectX-7
// of 400 Gb/s (A100: ConnectX-6 of 200 Gb/s) for each GPU.
#include <algorithm>
#include <array>

#include "engine/machine/machine.h"

namespace trainctl {
namespace {

constexpr double kTera = 1e12, kGiga = 1e9, kMicro = 1e-6;
constexpr double kMiB = 1024.0 * 1024, kGiB = 1024 * kMiB;

/// One thread per rank, with the figures of a slow core, so that plans for unknown CPUs are conservative.
Machine cpu() {
  Machine m;
  m.name = "cpu";
  m.source = "a guess at one core of a server";
  m.devices = 64;
  m.products = {{5e10}, {5e10}, {5e10}};
  m.memory_rate = {1e10};
  m.links = {{.name = "shared memory", .bandwidth = {5e9}, .latency = {5 * kMicro}}};
  return m;
}

/// A kind of GPU.
struct Chip {
  ProductRates products;
  int multiprocessors;
  double exponentials;
  ProductRates data_sheet;  ///< products, without sparsity
};
constexpr Chip kA100 = {
    {{17 * kTera}, {134 * kTera}, {268 * kTera}}, 108, 1.2 * kTera, {{19.5 * kTera}, {156 * kTera}, {312 * kTera}}};
constexpr Chip kH100 = {
    {{53 * kTera}, {396 * kTera}, {792 * kTera}}, 132, 2.4 * kTera, {{67 * kTera}, {494.7 * kTera}, {989.4 * kTera}}};

Machine gpus(const char* name, const Chip& chip, double memory_gib, double memory_rate, double nvlink, double network) {
  Machine m;
  m.name = name;
  m.source = "data sheets";
  m.kind = DeviceKind::cuda;
  m.devices = 8;
  m.memory = {memory_gib * kGiB};
  m.reserved = {640 * kMiB};
  m.for_collectives = {780 * kMiB};
  m.for_messages = {850 * kMiB};
  m.products = chip.products;
  m.memory_rate = {memory_rate};
  m.multiprocessors = chip.multiprocessors;
  m.exponentials_per_second = chip.exponentials;
  m.launch = {2 * kMicro};
  m.overlaps = true;
  m.overlap_cost = 1.1;
  m.links = {{.name = "NVLink", .devices = 8, .bandwidth = {nvlink}, .latency = {6 * kMicro}},
             {.name = "InfiniBand", .bandwidth = {network}, .latency = {12 * kMicro}}};
  return m;
}

const std::array<Machine, 4>& machines() {
  static const std::array<Machine, 4> all = {
      cpu(),
      gpus("a100x8", kA100, 80, 1.7 * kTera, 235 * kGiga, 22 * kGiga),
      gpus("h100x8", kH100, 80, 2.8 * kTera, 370 * kGiga, 45 * kGiga),
      gpus("h200x8", kH100, 141e9 / kGiB, 4.0 * kTera, 370 * kGiga, 45 * kGiga),
  };
  return all;
}

}  // namespace

std::span<const Machine> known_machines() { return machines(); }

FlopsPerSecond data_sheet_rate(const Machine& machine, DType dtype, bool tf32) {
  for (const Chip& chip : {kA100, kH100})
    if (machine.kind == DeviceKind::cuda && machine.multiprocessors == chip.multiprocessors)
      return is_half(dtype) ? chip.data_sheet.bf16 : tf32 ? chip.data_sheet.tf32 : chip.data_sheet.fp32;
  return {};
}

const Machine* find_machine(std::string_view name) {
  const auto found =
      std::find_if(machines().begin(), machines().end(), [&](const Machine& m) { return m.name == name; });
  return found == machines().end() ? nullptr : &*found;
}

}  // namespace trainctl
