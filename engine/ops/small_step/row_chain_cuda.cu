// A small batch through several layers in one launch: forward, loss and backward, as long as each layer treats rows
// independently. A cluster of blocks takes 8 rows through all layers. A row's results do not depend on its neighbours.
//
//   layer                       block b of B computes                       it sends to all blocks
//   wide      n > 32            columns [32 t, 32 t + 32), t = b, b + B ..  these, unless the next is in parts
//   in parts  n <= 32, k > 32   a part of each sum, from its tiles of k     its parts
//   shallow   k <= 32           as wide if n > 32, else everything          as wide if n > 32, else nothing
//   few       last, n <= 4      everything, to save an exchange             nothing
//   loss                        everything                                  nothing
//   back to `few` from a loss   everything, to save an exchange             nothing
//
// Results are written straight into the shared memory of all blocks of the cluster by st.async; the receiver's mbarrier
// counts the bytes, so a layer waits only for its own rows. Weights depend on no layer: dedicated warps load them into
// shared memory ahead of the layer. One of these warps sums the loss at the end.
//
// Two buffers for sent data alternate; what a block computes for itself is stored elsewhere. A buffer is overwritten
// without a barrier: a block makes exchange i only after it has received parts or notes of exchange i - 1 from all
// blocks, so every warp of theirs has read the data of exchange i - 2.
#include <algorithm>
#include <array>
#include <utility>

#include "engine/ops/matmul/product_shape.h"
#include "engine/ops/small_step/finish_cuda.h"
#include "engine/ops/small_step/groups_cuda.h"
#include "engine/ops/small_step/row_chain_losses_cuda.cuh"
#include "engine/ops/small_step/row_chain_products_cuda.cuh"
#include "engine/ops/small_step/tickets_cuda.h"

namespace trainctl::cuda {
namespace {

/// Rows of a batch: 6 clusters; an H200 runs 7 at once. More rows are faster as products and a head (head_cuda.cu).
constexpr int64_t kMostRows = 48;

__global__ void __launch_bounds__(kThreads, 1) row_chain(const __grid_constant__ Chain chain) {
  if constexpr (!kCodeForHopper) return;
  extern __shared__ __align__(1024) float4 shared4[];
  const int cluster = cluster_index(), row0 = cluster * chain.of_cluster;
  const Place on{reinterpret_cast<float*>(shared4),
                 block_in_cluster(),
                 chain.blocks,
                 row0,
                 min(chain.of_cluster, chain.rows - row0),
                 __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0),  // makes it warp-uniform for the compiler
                 static_cast<int>(threadIdx.x % 32)};
  if (on.row == kWarps) {
    prepare_barriers(chain, on);
    prefetch_maps(chain, on);
  }
  arrive_at_cluster();
  wait_for_arrivals();  // barriers are initialised, and no block sends to one that has not started
  if (on.row >= kWarps && on.row < kWarps + kBringers) {
    bring_weights(chain, on);
    if (chain.loss >= 0 && on.block == 0 && on.row == kWarps) count_loss(chain, on, cluster);
    return;
  }
  wait_for_kernel_before();
  let_next_kernel_start();
  if (on.row >= kWarps) return fetch_slabs(chain, on);
  if (chain.packs)
    fetch_rows<4>(chain.links[0], on);
  else
    fetch_rows<1>(chain.links[0], on);
  Label label;
  if (chain.loss >= 0) label = fetch_label(chain.links[chain.loss], on);
  Ring ring(chain, on);
  float* came = on.shared + kRowsCame;
#pragma unroll 1
  for (int i = 0; i < chain.count; ++i) {
    const Link l = chain.links[i];  // read once, while its rows arrive: dynamically indexed parameters are slow
    float* const counter = on.shared + kResultsCame + 2 * i;
    __syncwarp();  // lanes read the whole rows that their warp kept
    if (l.form == Form::loss)
      make_loss(l, on, label, came);
    else
      make_product(l, on, ring, came, counter);
    came = l.wide && l.sent >= 0 ? counter : nullptr;
  }
}

// Which kernels are links, and how many clusters they get

std::optional<Link> product_link(const CudaKernelCall& call) {
  const TensorArg &a = call.in[0], &b = call.in[1], &c = call.out[0];
  const Epilogue epilogue = epilogue_of(call.attrs);
  const auto is_relu_or_none = [](Activation a) { return a == Activation::none || a == Activation::relu; };
  const bool plain = a.dtype == DType::f32 && b.dtype == DType::f32 && c.dtype == DType::f32 && !call.tf32 &&
                     !call.attrs.flag("tf32") && !c.accumulate && call.out.size() == 1 && b.shape.size() == 2 &&
                     !call.attrs.flag("transpose_a") && !epilogue.residual && is_relu_or_none(epilogue.activation) &&
                     is_relu_or_none(epilogue.slope);
  if (!plain) return std::nullopt;
  Product p;
  set_matmul_shape(call, p);
  constexpr int64_t kMost = 1 << 13;
  if (p.batch != 1 || p.m == 0 || p.n == 0 || p.k == 0 || p.n > kMost || p.k > kMost) return std::nullopt;
  Link l;
  l.along = p.transpose_b;
  l.relu = epilogue.activation == Activation::relu;
  l.k = static_cast<int>(p.k);
  l.n = static_cast<int>(p.n);
  l.x = a.as<float>();
  l.w = b.as<float>();
  l.y = c.as<float>();
  if (epilogue.bias) {
    if (call.in[2].dtype != DType::f32) return std::nullopt;
    l.bias = call.in[2].as<float>();
  }
  if (epilogue.slope == Activation::relu) {
    if (call.in.back().dtype != DType::f32) return std::nullopt;
    l.relu_result = call.in.back().as<float>();
  }
  if (l.along && (l.k % 4 != 0 || !is_aligned(l.x))) return std::nullopt;
  if ((!l.along || l.n > kCols) && l.n % 4 != 0) return std::nullopt;
  return is_aligned(l.w) ? std::optional(l) : std::nullopt;
}

std::optional<Link> loss_link(const GroupedKernel& kernel) {
  const CudaKernelCall& call = kernel.call;
  const std::optional<RowLoss> loss = row_loss_of(kernel);
  if (!loss || loss->type != DType::f32) return std::nullopt;
  if (loss->kind == LossKind::softmax_cross_entropy && loss->n > kMostClasses) return std::nullopt;
  Link l;
  l.kind = loss->kind;
  l.n = loss->n;
  l.x = call.in[0].as<float>();
  l.w = call.in[1].as<float>();
  l.y = call.out[1].as<float>();
  l.loss = call.out[0].as<float>();
  l.add_to_loss = call.out[0].accumulate;
  l.scale = loss->scale;
  return l;
}

/// Each link's input is the output of the one before; weights, biases and labels come from outside. A relu_result that
/// is computed in the chain must be computed by the threads that read it.
bool is_chain(const Chain& chain) {
  for (int i = 0; i < chain.count; ++i) {
    const Link& l = chain.links[i];
    if (i > 0 && (l.x != chain.links[i - 1].y || (l.kind == LossKind::none ? l.k : l.n) != chain.links[i - 1].n))
      return false;
    if (i == 0 && l.kind != LossKind::none) return false;
    for (int j = 0; j < chain.count; ++j) {
      const Link& other = chain.links[j];
      const bool same_threads = other.kind == LossKind::none && other.n == l.n && j < i;
      for (const float* const made : std::array<const float*, 2>{other.y, other.loss})
        if (made != nullptr && (made == l.w || made == l.bias || (made == l.relu_result && !same_threads)))
          return false;
    }
  }
  return true;
}

/// The form that depends on the link alone.
void set_form(Link& l) {
  const bool product = l.kind == LossKind::none;
  l.tiles = static_cast<int>(ceil_div(l.n, kCols));
  l.depth = static_cast<int>(ceil_div(l.k, kCols));
  l.wide = product && l.tiles > 1;
  l.form = !product ? Form::loss : l.depth == 1 ? Form::shallow : l.wide ? Form::deep : Form::in_parts;
}

/// For the links where an exchange between blocks costs more than redundant work: a last layer of few columns, and the
/// product back from its loss. Every block computes both from whole rows and all weights.
void make_ends_everywhere(std::span<Link> links) {
  constexpr int kMostWeights = 2048;
  for (size_t i = 1; i < links.size(); ++i) {
    Link& last = links[i];
    if (last.form != Form::in_parts || !last.along || last.n > kFew || last.n * last.k > kMostWeights ||
        !links[i - 1].wide)
      continue;
    last.form = Form::few;
    if (i + 3 >= links.size() || links[i + 1].form != Form::loss || links[i + 3].form != Form::deep) continue;
    Link& back = links[i + 2];
    if (back.form == Form::shallow && back.wide && !back.along && back.n == last.k && back.bias == nullptr &&
        !back.relu && (back.relu_result == nullptr || back.relu_result == last.x))
      back.form = Form::everywhere;
  }
}

/// Lays out shared memory. Returns its total floats; null if it does not fit.
std::optional<int> place(Chain& chain, int most_floats) {
  int end = kFirstPlace;
  const auto take = [&](int floats) { return std::exchange(end, end + floats); };
  const auto own = [&](int tiles) { return static_cast<int>(ceil_div(tiles, chain.blocks)); };
  const std::span links(chain.links, static_cast<size_t>(chain.count));

  // Two alternating buffers for sent data; the first rows are in the first one from the start.
  Link& first = links[0];
  first.whole_rows = first.form != Form::in_parts;
  int turn = 0, floats[2] = {(first.whole_rows ? first.depth : own(first.depth)) * kRowTile, 0};
  for (size_t i = 0; i < links.size(); ++i) {
    Link& l = links[i];
    const bool taken_whole =
        l.wide && l.form != Form::everywhere && i + 1 < links.size() && links[i + 1].form != Form::in_parts;
    if (!taken_whole && l.form != Form::in_parts) continue;
    l.sent = turn = 1 - turn;
    l.sent_pitch = static_cast<int>(round_up(l.n, 4));
    floats[turn] = std::max(floats[turn], taken_whole ? l.tiles * kRowTile : chain.blocks * kRows * l.sent_pitch);
  }
  int places[2];
  for (int i : {0, 1}) places[i] = take(static_cast<int>(round_up(floats[i], kTileAligned)));
  first.rows = places[0];

  for (size_t i = 0; i < links.size(); ++i) {
    Link& l = links[i];
    if (l.sent >= 0) l.sent = places[l.sent];
    const bool taken_whole = l.wide && l.sent >= 0, last = i + 1 == links.size();
    const bool everywhere = l.form == Form::everywhere;
    const bool for_slope = std::any_of(
        links.begin(), links.end(), [&](const Link& o) { return o.relu_result == l.y && o.form != Form::everywhere; });
    if ((!last && !taken_whole) || for_slope)
      l.kept = take((l.wide && !everywhere ? own(l.tiles) : l.tiles) * kRowTile);
    for (const Link& made : links.first(i))
      if (made.y == l.relu_result) l.slope = everywhere ? made.sent : made.kept;
    if (l.form == Form::in_parts || l.form == Form::shallow)
      l.slabs = take((l.form == Form::in_parts ? own(l.depth) : l.wide ? own(l.tiles) : 1) * kWeightTile);
    if (everywhere || l.form == Form::few) l.slabs = take(l.k * l.n);
    if (last) break;
    links[i + 1].rows = taken_whole ? l.sent : l.kept;
    links[i + 1].whole_rows = taken_whole || everywhere || !l.wide;
  }
  chain.weights = end = static_cast<int>(round_up(end, kTileAligned));
  const bool deep = std::any_of(links.begin(), links.end(), [](const Link& l) { return l.form == Form::deep; });
  chain.stages = deep ? std::min(kMostStages, (most_floats - end) / kStage) : 0;
  if (end > most_floats || (deep && chain.stages < 1)) return std::nullopt;
  return end + chain.stages * kStage;
}

/// For the weights that the copy engine loads. False: the driver does not support it.
bool set_tile_maps(Chain& chain) {
  for (int i = 0; i < chain.count; ++i) {
    const Link& l = chain.links[i];
    if (l.form != Form::deep) continue;
    if (!set_tile_map(chain.tiles[i], l.w, l.along ? l.n : l.k, l.along ? l.k : l.n, kCols)) return false;
    chain.deep[chain.deep_count++] = static_cast<uint8_t>(i);
  }
  return true;
}

/// The chain's kernel in clusters of `blocks` blocks; null if the clusters do not all run at once.
std::optional<CudaKernel> prepare(const CudaKernelCall& call, Chain chain, int blocks) {
  int device = 0, most = 0;
  cuda_check(cudaGetDevice(&device), "cudaGetDevice");
  cuda_check(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "cudaDeviceGetAttribute");
  chain.blocks = blocks;
  const std::optional<int> floats = place(chain, most / static_cast<int>(sizeof(float)));
  if (!floats) return std::nullopt;
  const int bytes = *floats * static_cast<int>(sizeof(float));
  if (!allow_large_clusters(row_chain, most)) return std::nullopt;
  const ClusterLaunch probe(dim3(static_cast<unsigned>(blocks)), kThreads, static_cast<size_t>(bytes), blocks, nullptr);
  const auto clusters = static_cast<int>(ceil_div(chain.rows, kRows));
  if (clusters > clusters_at_once(row_chain, probe, blocks)) return std::nullopt;
  chain.of_cluster = static_cast<int>(ceil_div(chain.rows, clusters));
  const Tickets ticket = chain.loss >= 0 ? take_tickets(1) : nullptr;
  if (chain.loss >= 0 && ticket == nullptr) return std::nullopt;
  call.scratch->need(clusters * static_cast<int64_t>(sizeof(double)));
  return [=, scratch = call.scratch](CudaStream stream) {
    Chain now = chain;
    now.loss_parts = static_cast<double*>(scratch->memory());
    now.ticket = ticket.get();
    const ClusterLaunch launch(dim3(static_cast<unsigned>(clusters * blocks)), kThreads, static_cast<size_t>(bytes),
                               blocks, stream);
    cuda_check(cudaLaunchKernelEx(&launch.config, row_chain, now), "row_chain");
  };
}

}  // namespace

std::optional<CudaKernel> prepare_row_chain(std::span<const GroupedKernel> kernels) {
  if (kernels.size() < 2 || kernels.size() > kMostLinks || !built_for_hopper()) return std::nullopt;
  Chain chain;
  int64_t rows = 0;
  for (const GroupedKernel& kernel : kernels) {
    const bool product = kernel.kernel->launch_role == LaunchRole::product;
    const std::optional<Link> link = product ? product_link(kernel.call) : loss_link(kernel);
    if (!link) return std::nullopt;
    const int64_t own_rows = kernel.call.in[0].size() / (product ? link->k : link->n);
    if (chain.count > 0 && own_rows != rows) return std::nullopt;
    rows = own_rows;
    if (!product) {
      if (chain.loss >= 0) return std::nullopt;
      chain.loss = chain.count;
    }
    chain.links[chain.count] = *link;
    set_form(chain.links[chain.count++]);
  }
  if (rows > kMostRows || !is_chain(chain)) return std::nullopt;
  chain.rows = static_cast<int>(rows);
  chain.packs = chain.links[0].k % 4 == 0 && is_aligned(chain.links[0].x);
  make_ends_everywhere(std::span(chain.links, static_cast<size_t>(chain.count)));
  if (!set_tile_maps(chain)) return std::nullopt;
  const CudaKernelCall& call = kernels[0].call;
  if (std::optional<CudaKernel> large = prepare(call, chain, 16)) return large;
  return prepare(call, chain, 8);
}

}  // namespace trainctl::cuda
