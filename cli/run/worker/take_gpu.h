// The GPU of a rank whose launcher is on another host, and does not know this one's.
#pragma once

namespace trainctl {

/// Makes GPU `number`, from 0, of those that this process sees the only one, before CUDA starts. Returns the host's
/// number of it. Throws EnvError if there are not so many.
int take_gpu(int number);

}  // namespace trainctl
