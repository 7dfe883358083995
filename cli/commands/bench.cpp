// trainctl bench: times kernels and collectives of this machine against its limits, and the reading of samples.
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands/commands.h"
#include "cli/commands/job_arguments.h"
#include "cli/measure/collective_bench.h"
#include "cli/measure/data_bench.h"
#include "cli/measure/op_bench.h"
#include "cli/render/bench_report.h"
#include "cli/run/worker/host_memory.h"
#include "cli/watch_files.h"
#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/runtime/comm/event.h"
#include "engine/runtime/cuda/devices.h"
#include "engine/runtime/measure/collective_timer.h"
#include "engine/spec/error_positions.h"
#include "engine/spec/fields.h"

namespace trainctl {
namespace {

constexpr int kMostRanks = 64;

struct BenchArguments {
  std::vector<std::string> names;
  std::string shapes, attrs, dtype = "f32", device = "cpu", bytes = "1K,64K,1M,16M,256M";
  int repeat = 30, ranks = 2, threads = 1;
  bool json = false;
};

const char* const kOpFooter =
    R"(Times the very kernel that programs run, on random data. What memory bounds gets its operands from there: more
sets of them than the caches hold are used in turn. On a GPU many launches are captured as one
graph and timed by events; on one CPU thread the clock is the thread's own.

  time      the median of --repeat samples, and the tenth and ninetieth of a hundred
  GFLOP/s   the op's operations over the time
  GB/s      each operand once through memory, over the time
  of limit  the least time that the limits measured in the same run allow, over the time:
            max(operations / rate of square matrix products, bytes / rate of memory)

Examples:
  trainctl bench op                                   lists the ops
  trainctl bench op matmul --shape 32x784,512x784 --attrs transpose_b=true
  trainctl bench op relu gelu softmax
  trainctl bench op all --device cuda --dtype bf16 --json)";

const char* const kCollectiveFooter =
    R"(Starts a process a rank, checks a result, and times calls that all ranks begin together. A call took as long as
its slowest rank. KIND: all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, or all.

  bytes     the larger of what one rank puts in and gets out
  GB/s      bytes / time
  bus GB/s  GB/s times the part that a rank must move over its link, as nccl-tests define it, with p ranks:
            all_reduce 2 (p-1) / p; all_gather, reduce_scatter and all_to_all (p-1) / p; broadcast 1
  of limit  bus GB/s over what was measured in the same run with all ranks at once: on CPUs a copy in memory, on
            GPUs a copy to the next GPU

Examples:
  trainctl bench collective all_reduce --ranks 8 --bytes 1K,1M,256M
  trainctl bench collective all --ranks 4 --device cuda)";

void require_counts(const BenchArguments& options) {
  if (options.repeat < 1 || options.repeat > 1000) throw SpecError({}, "--repeat", "from 1 to 1000 samples are taken");
  if (options.threads < 1 || options.threads > 1024) throw SpecError({}, "--threads", "from 1 to 1024 threads may run");
  if (options.ranks < 1 || options.ranks > kMostRanks) {
    throw SpecError({}, "--ranks", "from 1 to " + std::to_string(kMostRanks) + " ranks are started");
  }
}

Device device_of(const BenchArguments& options) { return options.device == "cuda" ? Device::cuda : Device::cpu; }

void require_gpus(int wanted) {
  const CudaDevices devices = find_cuda_devices();
  if (devices.list.empty()) throw EnvError("--device cuda: " + devices.why_none + "; use --device cpu");
  if (static_cast<int>(devices.list.size()) >= wanted) return;
  throw EnvError("--device cuda: " + std::to_string(wanted) + " ranks need a GPU each, there " +
                 (devices.list.size() == 1 ? "is 1" : "are " + std::to_string(devices.list.size())));
}

std::vector<OpRequest> op_requests(const BenchArguments& options, const OpBench& bench) {
  const BenchType type = parse_bench_type(options.dtype);
  if (device_of(options) == Device::cpu && (type.dtype == DType::bf16 || type.tf32)) {
    throw SpecError({}, "--dtype", "the CPU's kernels compute in f32", "--device cuda has " + options.dtype);
  }
  const bool all = options.names == std::vector<std::string>{"all"};
  if ((all || options.names.size() > 1) && !(options.shapes.empty() && options.attrs.empty())) {
    throw SpecError({}, "op", "--shape and --attrs are of one op, several are given");
  }
  std::vector<OpRequest> requests;
  if (all) {
    for (const KernelDef* kernel : all_kernels()) {
      if (bench.has(kernel->name)) requests.push_back(make_op_request(kernel->name, "", "", type));
    }
    return requests;
  }
  for (const std::string& name : options.names) {
    requests.push_back(make_op_request(name, options.shapes, options.attrs, type));
    if (!bench.has(name)) throw EnvError("this trainctl has no kernel of " + name + " for --device " + options.device);
  }
  return requests;
}

int bench_op(const BenchArguments& options) {
  if (options.names.empty()) {
    std::cout << render_op_list();
    return kExitDone;
  }
  require_counts(options);
  if (device_of(options) == Device::cuda) require_gpus(1);
  const std::unique_ptr<KernelTimer> timer =
      device_of(options) == Device::cuda ? make_cuda_kernel_timer() : make_cpu_kernel_timer(options.threads);
  OpBench bench(*timer, {.samples = options.repeat});
  std::vector<OpResult> results;
  for (const OpRequest& request : op_requests(options, bench)) results.push_back(bench.run(request));
  std::cout << (options.json ? ops_json(results, timer->device()).dump(2) + "\n"
                             : render_ops(results, timer->device()));
  return kExitDone;
}

int bench_collective(const BenchArguments& options) {
  require_counts(options);
  CollectiveRequest request;
  request.device = device_of(options);
  request.ranks = options.ranks;
  request.samples = options.repeat;
  request.bytes = parse_sizes(options.bytes);
  const std::vector<std::string> names = collective_names();
  for (const std::string& name : options.names == std::vector<std::string>{"all"} ? names : options.names) {
    const std::optional<Collective> kind = find_collective(name);
    if (!kind) {
      const std::string near = did_you_mean(name, names);
      throw SpecError({}, "KIND", "there is no collective '" + name + "'",
                      near.empty() ? "one of " + join(names) + ", or all" : near);
    }
    request.kinds.push_back(*kind);
  }
  if (request.device == Device::cuda) {
    require_gpus(request.ranks);
  } else {
    const int64_t most = *std::max_element(request.bytes.begin(), request.bytes.end());
    if (const int64_t needed = request.ranks * collective_timer_bytes(most); needed > available_memory()) {
      throw EnvError(std::to_string(request.ranks) + " ranks need " + format_bytes(needed) + " for " +
                     format_bytes(most) + " in and out, this host has " + format_bytes(available_memory()) +
                     " left; try smaller --bytes or fewer --ranks");
    }
  }
  const std::vector<CollectiveResult> results = bench_collectives(request);
  std::cout << (options.json ? collectives_json(results, request.device).dump(2) + "\n"
                             : render_collectives(results, request.device));
  int64_t wrong = 0;
  for (const CollectiveResult& result : results) wrong += result.wrong;
  check(wrong == 0, "collectives give the right sums");
  return kExitDone;
}

struct DataOptions {
  JobArguments job;
  int workers = 0;
  double seconds = 2;
  bool json = false;
};

const char* const kDataFooter =
    R"(Reads samples in the order of the run, without a cache and without a step: with 1 worker, 2, 4, … up to --workers.

  read       bytes of files and archives
  decode     JPEG and PNG
  transform  dataset.transforms
  copy       to the type in which the device loads them

Examples:
  trainctl bench data job.yaml
  trainctl bench data job.yaml --workers 8 --seconds 10)";

int bench_data_set(const DataOptions& options) {
  const JobSpec job = options.job.load();
  if (job.has_command()) throw SpecError(job.position("command"), "command", "a job with a command has no samples");
  const int workers = options.workers > 0 ? options.workers : comm::usable_cores();
  const auto watch = watch_files(job.launch.timeout_seconds);
  try {
    const DataBench bench = bench_data(job, workers, options.seconds);
    std::cout << (options.json ? data_json(bench).dump(2) + "\n" : render_data(bench, comm::usable_cores()));
  } catch (const SpecError& error) {
    throw with_positions(error, job);
  }
  return kExitDone;
}

void add_common_options(CLI::App& command, BenchArguments& options) {
  command.add_option("--device", options.device, "cpu | cuda")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  command.add_option("--repeat", options.repeat, "Number of samples")->capture_default_str();
  command.add_flag("--json", options.json, "The figures as JSON");
}

}  // namespace

void add_bench_command(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<BenchArguments>();
  auto* bench = app.add_subcommand("bench", "Time kernels, collectives and a job's samples on this machine");
  bench->require_subcommand(1);
  bench->footer(R"(Examples:
  trainctl bench op                                   lists the ops
  trainctl bench op matmul --shape 32x784,512x784 --attrs transpose_b=true
  trainctl bench collective all_reduce --ranks 8
  trainctl bench data job.yaml                        samples a second, by stage

trainctl help bench op says more about one of them.)");

  auto* op = bench->add_subcommand("op", "Time kernels; without a name, list them");
  op->add_option("OP", options->names, "Ops, or all");
  op->add_option("--shape", options->shapes, "Shapes of the inputs: 32x784,512x784");
  op->add_option("--attrs", options->attrs, "name=value,…: transpose_b=true or perm=[1,0]");
  op->add_option("--dtype", options->dtype, "f32 | bf16 | tf32")->capture_default_str();
  op->add_option("--threads", options->threads, "CPU threads that a kernel may use")->capture_default_str();
  add_common_options(*op, *options);
  op->footer(kOpFooter);
  op->callback([&chosen, options] { chosen = [options] { return bench_op(*options); }; });

  auto data_options = std::make_shared<DataOptions>();
  auto* data = bench->add_subcommand("data", "Time how fast a job's samples are read, decoded and transformed");
  data_options->job.add_to(*data);
  data->add_option("--workers", data_options->workers, "The most threads that read; 0: one for each core")
      ->check(CLI::Range(0, kMostDataWorkers))
      ->capture_default_str();
  data->add_option("--seconds", data_options->seconds, "For each number of workers")
      ->check(CLI::Range(0.01, 600.0))
      ->capture_default_str();
  data->add_flag("--json", data_options->json, "The figures as JSON");
  data->footer(kDataFooter);
  data->callback([&chosen, data_options] { chosen = [data_options] { return bench_data_set(*data_options); }; });

  auto* collective = bench->add_subcommand("collective", "Time collectives between processes");
  collective->add_option("KIND", options->names, "Collectives, or all")->required();
  collective->add_option("--ranks", options->ranks, "Processes, and on GPUs one GPU each")->capture_default_str();
  collective->add_option("--bytes", options->bytes, "Sizes, powers of 1024")->capture_default_str();
  add_common_options(*collective, *options);
  collective->footer(kCollectiveFooter);
  collective->callback([&chosen, options] { chosen = [options] { return bench_collective(*options); }; });
}

}  // namespace trainctl
