// The collectives that a hybrid_parallel job writes as layers.
#pragma once

#include "engine/model/layers.h"

namespace trainctl {

TensorId lower_all_reduce(LayerContext& layer);
TensorId lower_all_gather(LayerContext& layer);
TensorId lower_reduce_scatter(LayerContext& layer);
TensorId lower_all_to_all(LayerContext& layer);
TensorId lower_broadcast(LayerContext& layer);

}  // namespace trainctl
