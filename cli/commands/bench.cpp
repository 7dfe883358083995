// trainctl bench: times kernels and collectives against the limits of this machine, and the loading of samples.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands/commands.h"
#include "cli/commands/job_arguments.h"
#include "cli/measure/collective_bench.h"
#include "cli/measure/data_bench.h"
#include "cli/measure/model_bench.h"
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
  int64_t samples = 1, length = 4096;
  bool json = false;
};

const char* const kOpFooter =
    R"(Times the kernels that training programs run, on random data. Memory-bound kernels cycle through more sets of
operands than fit into the caches. On a GPU, many launches are captured as one graph and timed by events; on a
single CPU thread, the clock is the CPU time of that thread.

  time      median of --repeat samples, with the 10th and 90th percentile
  GFLOP/s   operations of the op / time
  GB/s      bytes of all operands, each counted once / time
  of limit  least possible time / time. The least possible time follows from limits that are measured in the same run:
            max(operations / rate of square matrix products, bytes / memory bandwidth)

Examples:
  trainctl bench op                                   list the ops
  trainctl bench op matmul --shape 32x784,512x784 --attrs transpose_b=true
  trainctl bench op relu gelu softmax
  trainctl bench op all --device cuda --dtype bf16 --json)";

const char* const kModelFooter =
    R"(Times the matrix products, attention, norms and loss of one training step of public language models, forward and
backward, each kernel on its own. Columns are those of `trainctl bench op`; in addition:

  calls     calls per step, over all layers
  share     share of the time of all these kernels
  slow      the kernel reaches less than 85 % of its limit

Rows are sorted by the time beyond the limit. A kernel that is not supported has a row that states why.

Examples:
  trainctl bench model                                list the models
  trainctl bench model llama-8b --length 8192 --device cuda --dtype bf16
  trainctl bench model all --device cuda --dtype bf16 --json)";

const char* const kCollectiveFooter =
    R"(Starts one process per rank, checks a result, and times calls that all ranks begin together. The time of a call
is that of its slowest rank. KIND: all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, or all.

  bytes     the larger of the input and the output of one rank
  GB/s      bytes / time
  bus GB/s  GB/s times the fraction that a rank must move over its link, as defined by nccl-tests. With p ranks:
            all_reduce 2 (p-1) / p; all_gather, reduce_scatter and all_to_all (p-1) / p; broadcast 1
  of limit  bus GB/s / limit. The limit is measured in the same run with all ranks active: a copy in memory on CPUs,
            a copy to the next GPU on GPUs

Examples:
  trainctl bench collective all_reduce --ranks 8 --bytes 1K,1M,256M
  trainctl bench collective all --ranks 4 --device cuda)";

void require_counts(const BenchArguments& options) {
  if (options.repeat < 1 || options.repeat > 1000)
    throw SpecError({}, "--repeat", "the number of samples must be from 1 to 1000");
  if (options.threads < 1 || options.threads > 1024)
    throw SpecError({}, "--threads", "the number of threads must be from 1 to 1024");
  if (options.ranks < 1 || options.ranks > kMostRanks) {
    throw SpecError({}, "--ranks", "the number of ranks must be from 1 to " + std::to_string(kMostRanks));
  }
}

Device device_of(const BenchArguments& options) { return options.device == "cuda" ? Device::cuda : Device::cpu; }

void require_gpus(int wanted) {
  const CudaDevices devices = find_cuda_devices();
  if (devices.list.empty()) throw EnvError("--device cuda: " + devices.why_none + "; use --device cpu");
  if (static_cast<int>(devices.list.size()) >= wanted) return;
  throw EnvError("--device cuda: " + std::to_string(wanted) + " ranks need one GPU each, but this host has " +
                 std::to_string(devices.list.size()));
}

BenchType type_of(const BenchArguments& options) {
  const BenchType type = parse_bench_type(options.dtype);
  if (device_of(options) == Device::cpu && (type.dtype == DType::bf16 || type.tf32))
    throw SpecError({}, "--dtype", "CPU kernels support only f32", "use --device cuda for " + options.dtype);
  return type;
}

std::unique_ptr<KernelTimer> timer_of(const BenchArguments& options) {
  if (device_of(options) == Device::cpu) return make_cpu_kernel_timer(options.threads);
  require_gpus(1);
  return make_cuda_kernel_timer();
}

std::vector<OpRequest> op_requests(const BenchArguments& options, const OpBench& bench) {
  const BenchType type = type_of(options);
  const bool all = options.names == std::vector<std::string>{"all"};
  if ((all || options.names.size() > 1) && !(options.shapes.empty() && options.attrs.empty())) {
    throw SpecError({}, "op", "--shape and --attrs apply to a single op, but several are given");
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
    if (!bench.has(name)) throw EnvError("this trainctl has no kernel for " + name + " on --device " + options.device);
  }
  return requests;
}

int bench_op(const BenchArguments& options) {
  if (options.names.empty()) {
    std::cout << render_op_list();
    return kExitDone;
  }
  require_counts(options);
  const std::unique_ptr<KernelTimer> timer = timer_of(options);
  OpBench bench(*timer, {.samples = options.repeat});
  std::vector<OpResult> results;
  for (const OpRequest& request : op_requests(options, bench)) results.push_back(bench.run(request));
  std::cout << (options.json ? ops_json(results, timer->device()).dump(2) + "\n"
                             : render_ops(results, timer->device()));
  return kExitDone;
}

/// Returns the names that the user gave, or all `known` ones. Throws SpecError, with `hint`, for an unknown name.
std::vector<std::string> chosen_names(const BenchArguments& options, const std::vector<std::string>& known,
                                      const char* argument, const char* what, const std::string& hint) {
  if (options.names == std::vector<std::string>{"all"}) return known;
  for (const std::string& name : options.names) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    const std::string near = did_you_mean(name, known);
    throw SpecError({}, argument, fmt::format("unknown {} '{}'", what, name), near.empty() ? hint : near);
  }
  return options.names;
}

int bench_models(const BenchArguments& options) {
  if (options.names.empty()) {
    std::cout << render_model_list();
    return kExitDone;
  }
  require_counts(options);
  std::vector<std::string> known;
  for (const PublicModel& model : public_models()) known.emplace_back(model.name);
  const std::vector<std::string> names =
      chosen_names(options, known, "MODEL", "model", "trainctl bench model lists all models");
  const BenchType type = type_of(options);
  const std::unique_ptr<KernelTimer> timer = timer_of(options);
  OpBench bench(*timer, {.samples = options.repeat});
  std::vector<ModelResult> results;
  for (const std::string& name : names)
    results.push_back(bench_model(*find_public_model(name), options.samples, options.length, type, bench));
  std::cout << (options.json ? models_json(results, timer->device()).dump(2) + "\n"
                             : render_models(results, timer->device()));
  return kExitDone;
}

/// Times the chosen collectives at each size, prints the results, and checks the sums that they compute.
int bench_collective(const BenchArguments& options) {
  require_counts(options);
  CollectiveRequest request;
  request.device = device_of(options);
  request.ranks = options.ranks;
  request.samples = options.repeat;
  request.bytes = parse_sizes(options.bytes);
  const std::vector<std::string> known = collective_names();
  for (const std::string& name :
       chosen_names(options, known, "KIND", "collective", "one of " + join(known) + ", or all"))
    request.kinds.push_back(*find_collective(name));
  if (request.device == Device::cuda) {
    require_gpus(request.ranks);
  } else {
    const int64_t most = *std::max_element(request.bytes.begin(), request.bytes.end());
    if (const int64_t needed = request.ranks * collective_timer_bytes(most); needed > available_memory()) {
      throw EnvError(std::to_string(request.ranks) + " ranks need " + format_bytes(needed) + " for " +
                     format_bytes(most) + " of input and output, but this host has only " +
                     format_bytes(available_memory()) + " available; use a smaller --bytes or fewer --ranks");
    }
  }
  const std::vector<CollectiveResult> results = bench_collectives(request);
  std::cout << (options.json ? collectives_json(results, request.device).dump(2) + "\n"
                             : render_collectives(results, request.device));
  int64_t wrong = 0;
  for (const CollectiveResult& result : results) wrong += result.wrong;
  check(wrong == 0, "collectives compute the correct sums");
  return kExitDone;
}

struct DataOptions {
  JobArguments job;
  int workers = 0;
  double seconds = 2;
  bool json = false;
};

const char* const kDataFooter =
    R"(Reads samples in the order of a run, without cache or training, with 1, 2, 4, … workers up to --workers.

  read       read files and archives
  decode     decode JPEG and PNG
  transform  apply dataset.transforms
  copy       convert to the type in which the device loads them

Examples:
  trainctl bench data job.yaml
  trainctl bench data job.yaml --workers 8 --seconds 10)";

int bench_data_set(const DataOptions& options) {
  const JobSpec job = options.job.load();
  if (job.has_command()) throw SpecError(job.position("command"), "command", "a job with a command has no data set");
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
  command.add_option("--repeat", options.repeat, "Number of samples per measurement")->capture_default_str();
  command.add_flag("--json", options.json, "Print the results as JSON");
}

}  // namespace

void add_bench_command(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<BenchArguments>();
  auto* bench = app.add_subcommand("bench", "Time kernels, models, collectives and data loading on this machine");
  bench->require_subcommand(1);
  bench->footer(R"(Examples:
  trainctl bench op                                   list the ops
  trainctl bench op matmul --shape 32x784,512x784 --attrs transpose_b=true
  trainctl bench model llama-8b --device cuda --dtype bf16
  trainctl bench collective all_reduce --ranks 8
  trainctl bench data job.yaml                        samples per second, by stage

trainctl help bench op describes one of them in detail.)");

  auto* op = bench->add_subcommand("op", "Time kernels; without a name, list them");
  op->add_option("OP", options->names, "Ops to time, or all");
  op->add_option("--shape", options->shapes, "Shapes of the inputs: 32x784,512x784");
  op->add_option("--attrs", options->attrs, "name=value,…: transpose_b=true or perm=[1,0]");
  op->add_option("--dtype", options->dtype, "f32 | bf16 | tf32")->capture_default_str();
  op->add_option("--threads", options->threads, "Number of CPU threads per kernel")->capture_default_str();
  add_common_options(*op, *options);
  op->footer(kOpFooter);
  op->callback([&chosen, options] { chosen = [options] { return bench_op(*options); }; });

  auto* model = bench->add_subcommand("model", "Time the kernels of public language models; without a name, list them");
  model->add_option("MODEL", options->names, "Models to time, or all");
  model->add_option("--length", options->length, "Tokens per sample")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  model->add_option("--samples", options->samples, "Samples per step")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 16))
      ->capture_default_str();
  model->add_option("--dtype", options->dtype, "f32 | bf16 | tf32")->capture_default_str();
  model->add_option("--threads", options->threads, "Number of CPU threads per kernel")->capture_default_str();
  add_common_options(*model, *options);
  model->footer(kModelFooter);
  model->callback([&chosen, options] { chosen = [options] { return bench_models(*options); }; });

  auto data_options = std::make_shared<DataOptions>();
  auto* data = bench->add_subcommand("data", "Time the loading of a job's samples: read, decode, transform");
  data_options->job.add_to(*data);
  data->add_option("--workers", data_options->workers, "Largest number of threads; 0 = one per core")
      ->check(CLI::Range(0, kMostDataWorkers))
      ->capture_default_str();
  data->add_option("--seconds", data_options->seconds, "Seconds per number of workers")
      ->check(CLI::Range(0.01, 600.0))
      ->capture_default_str();
  data->add_flag("--json", data_options->json, "Print the results as JSON");
  data->footer(kDataFooter);
  data->callback([&chosen, data_options] { chosen = [data_options] { return bench_data_set(*data_options); }; });

  auto* collective = bench->add_subcommand("collective", "Time collectives between processes");
  collective->add_option("KIND", options->names, "Collectives to time, or all")->required();
  collective->add_option("--ranks", options->ranks, "Number of processes; each uses one GPU with --device cuda")
      ->capture_default_str();
  collective->add_option("--bytes", options->bytes, "Sizes; K, M and G are powers of 1024")->capture_default_str();
  add_common_options(*collective, *options);
  collective->footer(kCollectiveFooter);
  collective->callback([&chosen, options] { chosen = [options] { return bench_collective(*options); }; });
}

}  // namespace trainctl
