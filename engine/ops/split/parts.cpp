// The ops split and concat along a dim that is cut over ranks: which elements each rank has in the whole tensor, and in
// its parts.
#include "engine/ops/split/parts.h"

#include "engine/base/error.h"

namespace trainctl {
namespace {

/// Finds the copies of a rank. All operands are seen as [rows, dim, inner_ bytes]: `rows` counts the elements of the
/// dims before the dim, inner_ is the size of the dims after it.
class Strips {
 public:
  Strips(const KernelCall& call, PartsKernel kernel, bool blocks)
      : kernel_(kernel),
        splits_(kernel == PartsKernel::split || kernel == PartsKernel::split_pack),
        packs_(kernel == PartsKernel::split_pack || kernel == PartsKernel::concat_pack),
        dim_(static_cast<size_t>(call.attrs.integer("dim"))) {
    const std::vector<TensorArg>& in = call.in;
    const size_t tensors = in.size() - (blocks ? 1 : 0);
    if (packs_ || blocks) blocks_ = packs_ ? &call.out[0] : &in.back();
    if (splits_) whole_ = in.data();
    if (kernel == PartsKernel::concat) whole_ = call.out.data();
    for (size_t i = 0; i < tensors && !splits_; ++i) parts_.push_back(&in[i]);
    for (size_t i = 0; i < call.out.size() && kernel == PartsKernel::split; ++i) parts_.push_back(&call.out[i]);
    const TensorArg& first = in[0];
    inner_ = byte_size(first.dtype);
    for (size_t d = dim_ + 1; d < first.shape.size(); ++d) inner_ *= first.shape[d];
    for (size_t d = 0; d < dim_; ++d) copies_.rows *= first.shape[d];
    for (const auto* operands : {&call.in, &call.out})
      for (const TensorArg& operand : *operands)
        check(operand.dtype == first.dtype, "split and concat move elements as they are");
    // Without blocks, no rank needs elements of another: the dim is not cut, or hybrid_parallel cuts it by hand.
    if (blocks_ != nullptr) {
      ways_ = first.global_shape[dim_] / first.shape[dim_];
      rank_ = first.offset[dim_] / first.shape[dim_];
    }
    of_dim_ = parts(call);
  }

  StripCopies take() {
    // The rank that sends a block and the rank that receives it both go through the pieces in the same order.
    std::vector<int64_t> filled(static_cast<size_t>(ways_));
    int64_t written = 0;
    for (const Piece& piece : of_dim_.pieces(ways_)) {
      const int64_t holder = splits_ ? piece.whole_rank : piece.part_rank,
                    reader = splits_ ? piece.part_rank : piece.whole_rank;
      const bool mine = packs_ ? holder == rank_ && reader != rank_ : reader == rank_;
      if (!mine) continue;
      const Place tensor = packs_ || holder == rank_ ? local_place(piece) : Place{};
      const int64_t other = packs_ ? reader : holder;
      Place block;
      if (other != rank_) block = in_block(other, std::exchange(filled[other], filled[other] + piece.count));
      const Place from = tensor.base != nullptr ? tensor : block, to = packs_ ? block : result(piece);
      copies_.strips.push_back({from.base, to.base, from.row, to.row, piece.count * inner_});
      written += piece.count;
    }
    if (packs_) copies_.has_gaps = written < ways_ * blocks_->shape[dim_ + 1];
    if (kernel_ == PartsKernel::concat) copies_.has_gaps = written < whole_->shape[dim_];
    return std::move(copies_);
  }

 private:
  struct Place {
    std::byte* base = nullptr;
    int64_t row = 0;
  };

  SplitParts parts(const KernelCall& call) const {
    Ints sizes = call.attrs.ints("sizes");
    if (!splits_)
      for (const TensorArg* part : parts_) sizes.push_back(ways_ * part->shape[dim_]);
    int64_t whole = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
    if (splits_) whole = ways_ * whole_->shape[dim_];
    if (!splits_ && call.attrs.has("size")) whole = call.attrs.integer("size");
    return SplitParts::of(whole, std::move(sizes), call.attrs.ints("offsets"));
  }

  Place at(const TensorArg& tensor, int64_t element) const {
    return {tensor.as<std::byte>() + element * inner_, tensor.shape[dim_] * inner_};
  }
  Place in_whole(const Piece& piece) const { return at(*whole_, piece.in_whole - rank_ * (of_dim_.whole / ways_)); }
  Place in_part(const Piece& piece) const {
    return at(*parts_[piece.part], piece.in_part - rank_ * (of_dim_.sizes[piece.part] / ways_));
  }
  Place local_place(const Piece& piece) const { return splits_ ? in_whole(piece) : in_part(piece); }
  Place result(const Piece& piece) const { return splits_ ? in_part(piece) : in_whole(piece); }
  Place in_block(int64_t rank, int64_t element) const {
    const int64_t row = blocks_->shape[dim_ + 1] * inner_;
    return {blocks_->as<std::byte>() + rank * copies_.rows * row + element * inner_, row};
  }

  const PartsKernel kernel_;
  const bool splits_, packs_;
  const size_t dim_;
  const TensorArg *whole_ = nullptr, *blocks_ = nullptr;
  std::vector<const TensorArg*> parts_;
  int64_t inner_ = 1, ways_ = 1, rank_ = 0;
  SplitParts of_dim_;
  StripCopies copies_;
};

}  // namespace

StripCopies strip_copies(const KernelCall& call, PartsKernel kernel, bool blocks) {
  return Strips(call, kernel, blocks).take();
}

}  // namespace trainctl
