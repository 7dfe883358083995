// A convolution by cuDNN: the fastest of the ways (conv_ways.h) and engines that it has, measured once on a machine and
// kept in the file `convolutions` (device_choices_cuda.h).
#include "engine/ops/conv2d/conv_library_cuda.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>

#include "engine/ops/conv2d/conv_layout_cuda.h"
#include "engine/ops/conv2d/conv_tiles_cuda.h"
#include "engine/ops/conv2d/conv_ways.h"
#include "engine/ops/cuda/device_choices_cuda.h"
#include "engine/ops/cuda/fastest.h"
#include "engine/ops/cuda/launch_cuda.h"
#include "engine/ops/cuda/print_once.h"
#include "engine/ops/cuda/trial_cuda.h"
#include "engine/ops/matmul/product_cuda.h"

namespace trainctl {
namespace {

using cuda::CudnnConvolution;
using cuda::CudnnEngines;
using cuda::CudnnPlanPtr;
using cuda::CudnnTensor;

/// The number of engines that are measured per way, at most. The library's heuristics list the best ones first.
constexpr size_t kMostCandidates = 6;
constexpr double kWorthMeasuring = 0x1p26, kLongRun = 0x1p35;  ///< multiplications

CudnnTensor images(const Images& i, bool channels_last) {
  const int64_t height = i.size[0], width = i.size[1];
  CudnnTensor tensor{{i.n, i.c, height, width}, {i.c * height * width, height * width, width, 1}};
  if (channels_last) tensor.strides = {i.c * height * width, 1, width * i.c, i.c};
  return tensor;
}

bool is_aligned(const TensorArg& tensor) { return reinterpret_cast<uintptr_t>(tensor.data) % 16 == 0; }

int64_t image_bytes(const Images& i, DType dtype) { return i.c * i.pixels() * byte_size(dtype); }

/// An image operand of one call of cuDNN: it is read or written in place, or through a copy in scratch memory.
struct ImageOperand {
  TensorArg whole;
  int64_t channels = 0, copied_channels = 0;  ///< channels first: a copy is one row
  int64_t rows = 0;                           ///< rows of one call
  int64_t room = 0;                           ///< bytes of the copy; 0: none

  int64_t slice_bytes() const { return rows * channels * byte_size(whole.dtype); }
  std::byte* slice(int64_t i) const { return whole.as<std::byte>() + i * slice_bytes(); }
};

/// The calls of the library that compute a convolution in one of the ways.
class LibraryCalls {
 public:
  LibraryCalls(const ConvProblem& problem, const ConvWay& way)
      : problem_(problem),
        way_(way),
        call_(call_of(problem.shape, way, channel_unit(problem.tensors.x.dtype, problem.tf32))) {
    x_ = operand(problem.tensors.x, problem.shape.x, call_.x);
    y_ = operand(problem.tensors.y, problem.shape.y, call_.y);
    const ConvShape& s = problem.shape;
    weight_ = {s.y.c, s.x.c / s.groups, s.window.kernel[0] * s.window.kernel[1]};
    call_weight_ = {call_.y.c, call_.x.c / s.groups, weight_.window, s.channels_last};
    // If there is one channel, or a window of one pixel, both layouts of the weight have the same element order.
    const bool same_order = !s.channels_last || weight_.c == 1 || weight_.window == 1;
    weight_in_place_ = same_order && weight_.size() == call_weight_.size() && is_aligned(problem.tensors.w);
  }

  /// The scratch memory in bytes that is left for cuDNN next to the copies of the images.
  int64_t most_workspace() const { return kMostCudnnWorkspace - x_.room - y_.room; }

  /// The convolution of one call as cuDNN plans it.
  CudnnConvolution signature() const {
    const ConvShape& s = call_;
    CudnnConvolution c;
    c.kind = problem_.kind;
    c.x = images(s.x, s.channels_last);
    c.w = images({s.y.c, s.x.c / s.groups, s.window.kernel}, s.channels_last);
    c.y = images(s.y, s.channels_last);
    c.before = {s.window.before[0], s.window.before[1]};
    for (size_t d = 0; d < 2; ++d) {
      // The padding after the image equals that before it if that gives the same windows, since engines are made for
      // that; else it is just what the last window needs.
      const int64_t before = s.window.before[d], stride = s.window.stride[d], reach = s.window.reach(d);
      const bool even = (s.x.size[d] + 2 * before - reach) / stride + 1 == s.y.size[d];
      c.after.push_back(even ? before : (s.y.size[d] - 1) * stride + reach - s.x.size[d] - before);
    }
    c.stride = {s.window.stride[0], s.window.stride[1]};
    c.dilation = {s.window.dilation[0], s.window.dilation[1]};
    c.dtype = problem_.tensors.x.dtype;
    c.w_dtype = weight_type();
    c.tf32 = problem_.tf32;
    c.bias = way_.fused;
    c.relu = way_.fused && problem_.relu;
    return c;
  }

  CudaKernel kernel(const CudnnPlanPtr& plan, CudaScratch* scratch) const {
    return problem_.kind == ConvKind::weight ? weight_grad(plan, scratch) : with_weight(plan, scratch);
  }

 private:
  ImageOperand operand(const TensorArg& whole, const Images& own, const Images& of_call) const {
    ImageOperand o{whole, own.c, of_call.c, of_call.n * own.pixels()};
    const bool slices_aligned = way_.slices == 1 || o.slice_bytes() % 16 == 0;
    if (own.c != of_call.c || !slices_aligned || !is_aligned(whole))
      o.room = conv_room(of_call.n * image_bytes(of_call, whole.dtype));
    return o;
  }

  /// The output images, or the input gradient: calls of the library that read the weight, one per slice, with the
  /// copies around them.
  CudaKernel with_weight(const CudnnPlanPtr& plan, CudaScratch* scratch) const {
    const bool forward = problem_.kind == ConvKind::forward;
    const ImageOperand from = forward ? x_ : y_, to = forward ? y_ : x_;
    const DType type = problem_.tensors.w.dtype;
    const int64_t weight_room = weight_in_place_ ? 0 : conv_room(call_weight_.size() * byte_size(type));
    scratch->need(weight_room + from.room + to.room + plan->workspace());
    CudaKernel finish;
    if (problem_.finish && !way_.fused) finish = problem_.finish(problem_.tensors, scratch);
    return [=, slices = way_.slices, fused = way_.fused, w = problem_.tensors.w, bias = problem_.tensors.bias,
            layout = weight_, call_layout = call_weight_](CudaStream stream) {
      auto* const weight = static_cast<std::byte*>(scratch->memory());
      std::byte *const copy = weight + weight_room, *const result = copy + from.room;
      if (weight_room > 0) copy_weight(stream, w.data, type, layout, weight, type, call_layout, false);
      for (int64_t i = 0; i < slices; ++i) {
        if (from.room > 0) copy_in(stream, from, i, copy);
        std::vector<const void*> tensors = {from.room > 0 ? copy : from.slice(i), weight_room > 0 ? weight : w.data};
        if (fused) tensors.push_back(bias.data);
        tensors.push_back(to.room > 0 ? result : to.slice(i));
        plan->run(stream, tensors, result + to.room);
        if (to.room > 0)
          copy_rows(stream, to.whole.dtype, result, to.copied_channels, to.slice(i), to.channels, to.rows);
      }
      if (finish) finish(stream);
    };
  }

  /// The type of the weight, or of the gradient of the weight, in a call of cuDNN.
  DType weight_type() const {
    return problem_.kind == ConvKind::weight && !way_.rounded ? DType::f32 : problem_.tensors.x.dtype;
  }

  /// Each slice's gradient goes to scratch memory; several are added there, in f32.
  CudaKernel weight_grad(const CudnnPlanPtr& plan, CudaScratch* scratch) const {
    const TensorArg dw = problem_.tensors.w;
    const DType type = weight_type();
    const bool direct = weight_in_place_ && way_.slices == 1 && !dw.accumulate && dw.dtype == type;
    const int64_t part_room = direct ? 0 : conv_room(byte_size(type) * call_weight_.size());
    const int64_t sum_room = way_.slices > 1 ? conv_room(4 * weight_.size()) : 0;
    scratch->need(part_room + sum_room + x_.room + y_.room + plan->workspace());
    return [=, this_ = *this, slices = way_.slices](CudaStream stream) {
      const ImageOperand &x = this_.x_, &dy = this_.y_;
      auto* const part = static_cast<std::byte*>(scratch->memory());
      std::byte *const sum = part + part_room, *const x_copy = sum + sum_room, *const dy_copy = x_copy + x.room;
      for (int64_t i = 0; i < slices; ++i) {
        if (x.room > 0) copy_in(stream, x, i, x_copy);
        if (dy.room > 0) copy_in(stream, dy, i, dy_copy);
        plan->run(stream,
                  {dy.room > 0 ? dy_copy : dy.slice(i), x.room > 0 ? x_copy : x.slice(i), direct ? dw.data : part},
                  dy_copy + dy.room);
        if (slices > 1) copy_weight(stream, part, type, this_.call_weight_, sum, DType::f32, this_.weight_, i > 0);
      }
      if (slices > 1)
        copy_weight(stream, sum, DType::f32, this_.weight_, dw.data, dw.dtype, this_.weight_, dw.accumulate);
      else if (!direct)
        copy_weight(stream, part, type, this_.call_weight_, dw.data, dw.dtype, this_.weight_, dw.accumulate);
    };
  }

  static void copy_in(CudaStream stream, const ImageOperand& from, int64_t slice, void* to) {
    copy_rows(stream, from.whole.dtype, from.slice(slice), from.channels, to, from.copied_channels, from.rows);
  }

  ConvProblem problem_;
  ConvWay way_;
  ConvShape call_;
  ImageOperand x_, y_;
  WeightLayout weight_, call_weight_;
  bool weight_in_place_ = false;
};

/// A choice of how to compute a convolution: the way (conv_ways.h) and the name of the engine of cuDNN.
struct Choice {
  ConvWay way;
  std::string engine;

  std::string text() const { return to_string(way) + ":" + engine; }
  /// Parses what text() wrote. For any other text, the result has 0 slices.
  static Choice parse(const std::string& text) {
    const size_t colon = text.find(':');
    if (colon == std::string::npos) return {{.slices = 0}, ""};
    return {parse_way(text.substr(0, colon)), text.substr(colon + 1)};
  }
};

/// Names of the engine's own kernels of weight gradients, in the place of the name of an engine of cuDNN. They exist
/// because the only deterministic engine of cuDNN does not split the windows over blocks, and leaves most of the GPU
/// idle.
constexpr const char *kTiles = "tiles", *kProduct = "product";

/// Returns whether the weight gradient is one product of two matrices that can be read in place: the windows are single
/// pixels without gaps.
bool is_product(const ConvProblem& problem) {
  const ConvShape& s = problem.shape;
  const Window pixel;
  return s.channels_last && s.groups == 1 && s.window.kernel == pixel.kernel && s.window.stride == pixel.stride &&
         s.window.before == pixel.before && s.x.size == s.y.size && s.x.n * s.x.pixels() * s.x.c * s.y.c > 0;
}

/// Computes the weight gradient as a matrix product. Null if no kernel can compute that product.
CudaKernel product(const ConvProblem& problem, CudaScratch* scratch) {
  const ConvShape& s = problem.shape;
  const ConvTensors& t = problem.tensors;
  cuda::Product p{.m = s.y.c, .n = s.x.c, .k = s.x.n * s.x.pixels(), .a = t.y.data, .b = t.x.data, .c = t.w.data};
  p.operands = t.x.dtype, p.result = t.w.dtype;
  p.transpose_a = true;
  p.accumulate = t.w.accumulate;
  p.tf32 = problem.tf32 && p.operands == DType::f32;
  return cuda::prepare_product(p, *scratch).value_or(nullptr);
}

struct Candidate {
  Choice choice;
  CudnnPlanPtr plan;  ///< null: without the library

  bool is_there() const { return !choice.engine.empty(); }
  CudaKernel kernel(const ConvProblem& problem, CudaScratch* scratch) const {
    if (plan != nullptr) return LibraryCalls(problem, choice.way).kernel(plan, scratch);
    if (choice.engine == kTiles) return weight_grad_by_tiles(problem.shape, problem.tensors, scratch);
    return choice.engine == kProduct ? product(problem, scratch) : nullptr;
  }
};

/// Candidates for a weight gradient without the library.
std::vector<Candidate> own_candidates(const ConvProblem& problem) {
  std::vector<Candidate> candidates;
  if (problem.kind != ConvKind::weight) return candidates;
  if (is_product(problem)) candidates.push_back({{{}, kProduct}, nullptr});
  if (can_tile(problem.shape, problem.tensors)) candidates.push_back({{{}, kTiles}, nullptr});
  return candidates;
}

bool can_fuse(const ConvProblem& problem) { return problem.finish && is_aligned(problem.tensors.bias); }

/// The candidate that a choice names; empty if it no longer exists.
Candidate build(const ConvProblem& problem, const Choice& choice) {
  const ConvWay& way = choice.way;
  for (Candidate& own : own_candidates(problem))
    if (own.choice.text() == choice.text()) return own;
  if (way.slices < 1 || problem.shape.x.n % way.slices != 0 || (way.fused && !can_fuse(problem))) return {};
  const LibraryCalls given(problem, way);
  const auto engines = cudnn_engines(given.signature(), given.most_workspace());
  const auto found = std::find(engines->names().begin(), engines->names().end(), choice.engine);
  if (found == engines->names().end()) return {};
  CudnnPlanPtr plan = engines->plan(static_cast<size_t>(found - engines->names().begin()));
  return plan == nullptr ? Candidate{} : Candidate{choice, std::move(plan)};
}

/// Adds at most `most` engines for the smallest number of slices that has any. If none has, returns a description of
/// what was tried.
std::string add_candidates(const ConvProblem& problem, ConvWay way, size_t most, std::vector<Candidate>& candidates) {
  std::string before, tried;
  const size_t there = candidates.size();
  for (const int64_t slices : slice_counts(problem.shape.x.n)) {
    way.slices = slices;
    const LibraryCalls given(problem, way);
    if (given.most_workspace() < 0) {
      if (tried.empty()) tried = to_string(way) + ": copies of the images need more than 256 MB";
      continue;
    }
    const auto engines = cudnn_engines(given.signature(), given.most_workspace());
    for (size_t i = 0; i < engines->names().size() && candidates.size() < there + most; ++i) {
      if (CudnnPlanPtr plan = engines->plan(i)) candidates.push_back({{way, engines->names()[i]}, std::move(plan)});
    }
    if (candidates.size() > there) return "";
    if (engines->fault() == before) continue;  // the same fault is reported once for many numbers of slices
    before = engines->fault();
    tried += (tried.empty() ? "" : "; ") + to_string(way) + (slices == 1 ? " call: " : " calls: ") + before;
  }
  return tried;
}

double multiplications(const ConvShape& s) {
  return static_cast<double>(s.y.n * s.y.c * s.y.pixels()) * static_cast<double>(s.x.c / s.groups) *
         static_cast<double>(s.window.kernel[0] * s.window.kernel[1]);
}

/// Up to about `most` candidates, best guesses first. `tried`: what was tried without success, in words.
std::vector<Candidate> candidates_of(const ConvProblem& problem, size_t most, std::string& tried) {
  // Without a measurement, the first candidate is used; for small convolutions it is the library's.
  const bool large = multiplications(problem.shape) >= kWorthMeasuring;
  std::vector<Candidate> candidates = large ? own_candidates(problem) : std::vector<Candidate>{};
  const auto add = [&](const ConvWay& way) {
    if (candidates.size() >= most) return;
    const std::string failed = add_candidates(problem, way, std::min(most, kMostCandidates), candidates);
    if (!failed.empty()) tried += (tried.empty() ? "" : "; ") + failed;
  };
  const bool padded = can_pad(problem.shape, channel_unit(problem.tensors.x.dtype, problem.tf32));
  add({});
  if (padded) add({.padded = true});
  if (can_fuse(problem)) add({.fused = true});
  if (!candidates.empty() || problem.kind != ConvKind::weight || problem.tensors.x.dtype != DType::bf16)
    return candidates;
  add({.rounded = true});
  if (padded) add({.padded = true, .rounded = true});
  if (candidates.empty()) candidates = own_candidates(problem);
  return candidates;
}

/// The same problem with operands of equal sizes and alignment in the memory of the trial.
ConvProblem copy_of(const ConvProblem& problem, cuda::Trial& trial) {
  ConvProblem copy = problem;
  const auto replace = [&](TensorArg& tensor) {
    if (tensor.data == nullptr) return;
    auto* const memory = static_cast<std::byte*>(trial.numbers(tensor.size() + 16, tensor.dtype));
    tensor.data = memory + reinterpret_cast<uintptr_t>(tensor.data) % 16;
  };
  for (TensorArg* tensor : {&copy.tensors.x, &copy.tensors.w, &copy.tensors.y, &copy.tensors.bias}) replace(*tensor);
  return copy;
}

/// Index of the candidate that takes the least time on operands of the same sizes.
size_t fastest_of(const ConvProblem& problem, const std::vector<Candidate>& candidates) {
  cuda::Trial trial;
  CudaScratch scratch;
  const ConvProblem copy = copy_of(problem, trial);
  std::vector<CudaKernel> kernels;
  for (const Candidate& candidate : candidates) kernels.push_back(candidate.kernel(copy, &scratch));
  scratch.set_memory(trial.memory(scratch.bytes()));
  const int runs = multiplications(problem.shape) > kLongRun ? 1 : 10;
  float best = -1;
  return cuda::fastest(candidates.size(), [&](size_t i) {
    const auto once = [&](CudaStream stream) {
      if (!kernels[i]) return false;
      try {
        kernels[i](stream);
        return true;
      } catch (const EnvError&) {  // the library refuses it only now
        return false;
      }
    };
    float time = trial.milliseconds(once, 1);
    // Some engines take 100 times as long as the best.
    const bool hopeless = time < 0 || (best >= 0 && time > 2 * best + 0.05f);
    if (!hopeless && runs > 1) time = trial.milliseconds(once, runs);
    if (time >= 0 && (best < 0 || time < best)) best = time;
    return time;
  });
}

std::string key_of(const ConvProblem& problem) {
  std::string key = cuda::key_of(LibraryCalls(problem, {}).signature());
  if (problem.kind == ConvKind::weight) key += ",own";  // choices before there were own candidates do not count
  key += problem.finish ? (problem.relu ? ",bias,relu" : ",bias") : "";
  const ConvTensors& t = problem.tensors;
  for (const TensorArg* tensor : {&t.x, &t.w, &t.y, &t.bias}) key += is_aligned(*tensor) ? "" : ",unaligned";
  return key;
}

/// Chooses the candidate for a problem: the kept choice, else the first one for small problems, else the fastest one.
Candidate choose(const ConvProblem& problem, std::string& tried) {
  KeptChoices& kept = cuda::choices_of_device("convolutions", cuda::cudnn_version());
  const std::string key = key_of(problem);
  if (const std::optional<std::string> text = kept.find(key)) {
    if (Candidate found = build(problem, Choice::parse(*text)); found.is_there()) return found;
  }
  if (multiplications(problem.shape) < kWorthMeasuring) {
    std::vector<Candidate> first = candidates_of(problem, 1, tried);
    return first.empty() ? Candidate{} : std::move(first[0]);
  }
  std::vector<Candidate> candidates = candidates_of(problem, SIZE_MAX, tried);
  if (candidates.size() < 2) return candidates.empty() ? Candidate{} : std::move(candidates[0]);
  const std::string chosen = kept.find_or_make(
      key, candidates[0].choice.text(), [&] { return candidates[fastest_of(problem, candidates)].choice.text(); });
  Candidate first = candidates[0];
  candidates.clear();  // the plans that lost are freed with the graphs that hold them
  if (Candidate found = build(problem, Choice::parse(chosen)); found.is_there()) return found;
  print_once("cuDNN has no engine any more for the kept choice " + chosen + " of the convolution " + key +
             ", so its first suggestion is used, which may add in another order; delete the file of kept choices "
             "(docs/gpus.md) to measure again");
  return first;
}

/// The candidate that was chosen for a problem on a device, shared by equal layers. It also records that there is none.
struct Shared {
  Candidate candidate;
  std::string tried;
};
const Shared& shared(const ConvProblem& problem) {
  static std::mutex mutex;
  static auto& known = *new std::map<std::string, Shared>;  // never destroyed: the driver may end before
  const std::lock_guard lock(mutex);
  int device = 0;
  cuda_check(cudaGetDevice(&device), "cudaGetDevice");
  const auto [at, is_new] =
      known.try_emplace(std::to_string(device) + " " + cuda::cudnn_version() + " " + key_of(problem));
  if (is_new) at->second.candidate = choose(problem, at->second.tried);
  return at->second;
}

}  // namespace

CudaKernel library_convolution(const ConvProblem& problem, CudaScratch* scratch, std::string& tried) {
  const Shared& chosen = shared(problem);
  tried = chosen.tried;
  return chosen.candidate.is_there() ? chosen.candidate.kernel(problem, scratch) : nullptr;
}

}  // namespace trainctl
