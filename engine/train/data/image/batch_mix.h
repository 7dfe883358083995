// Mixup and CutMix: each row of a batch is mixed with the next one (the last with the first), and its label with that
// row's label. The result depends only on the random numbers of the batch, not on which worker reads a row.
//
//   mixup    row i = share * row i + (1 - share) * row i+1                       Zhang et al. 2018
//   cutmix   a box of row i+1 in row i; share is the rest of row i               Yun et al. 2019
//   share ~ Beta(alpha, alpha), one for the whole batch
#pragma once

#include <cstdint>

#include "engine/train/data/image/image.h"
#include "engine/train/data/sample_rng.h"

namespace trainctl {

struct BatchMix {
  double share = 1;  ///< share of the row's own label
  PixelBox box;      ///< cutmix: the box that is copied from the other row
};

/// `rng` is the batch's: SampleRng(seed, pass, number of the batch in it). Draws one number.
BatchMix draw_mixup(double alpha, SampleRng& rng);
/// Draws the share and the box of cutmix. Draws three numbers.
BatchMix draw_cutmix(double alpha, const ImageSize& image, SampleRng& rng);

inline int64_t mixed_with(int64_t row, int64_t rows) { return row + 1 < rows ? row + 1 : 0; }

/// Computes share * own + (1 - share) * other, for rows (mixup) and for labels in one-hot form. `out` may be `own`.
void mix(double share, const float* own, const float* other, int64_t elements, float* out);
/// Copies the box of `other` into `own`. Both are [h, w, c], or [c, h, w] with `channels_first`.
void paste_box(const PixelBox& box, const float* other, const ImageSize& image, int64_t channels, bool channels_first,
               float* own);

/// Returns x with P(Beta(alpha, alpha) <= x) = p. Public for its test.
double beta_quantile(double alpha, double p);

}  // namespace trainctl
