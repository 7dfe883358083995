// The passes of compile(), in order. Each transforms the program that the previous one left.
#pragma once

#include "engine/compile/compiler.h"

namespace trainctl {

/// Lays out the buckets, variables and all other buffers that live as long as the program.
void lay_out_variables(Compiler& c);
/// Determines which rank writes which part of the variables into checkpoints: state that several ranks have is divided
/// among them.
void divide_storage(Compiler& c);
/// Determines which images are stored channels last.
void choose_formats(Compiler& c);
/// Translates the tasks of the stage to instructions: the kernels of nodes, redistributions, messages of the pipeline,
/// sums of gradients, and the end of the step.
void lower_stage(Compiler& c);
/// Weights that are gathered within a task, at level 3 and in bf16, are gathered one layer before their use.
void gather_ahead(Compiler& c);
/// A loss and its gradient become one kernel.
void fuse_loss(Compiler& c);
/// Products of layers with precision fp8 take factors of 8 bits, each rounded once for all products that read it.
void narrow_products(Compiler& c);
/// A matmul or conv2d, add_bias, relu or gelu in a row become one; so do batch_norm, add and relu, and matmul and
/// relu_grad or gelu_grad.
void fuse_products(Compiler& c);
/// Activations, their slopes and gradients of biases become parts of the rounding to 8 bits.
void fuse_quantise(Compiler& c);
/// The mean and variance of batch_norm become one kernel.
void fuse_statistics(Compiler& c);
/// Ranks that share a batch exchange the statistics of batch_norm in one call, and those of its gradient in another.
void join_statistics(Compiler& c);
/// The gradient kernels of batch_norm read the gradient after the relu that was fused into its forward kernel.
void fuse_relu_grad(Compiler& c);
/// The last product, the loss and what reads their results run for some rows at a time.
void head_in_pieces(Compiler& c);
/// The kernels that compute gradients also apply plain SGD, if nothing else reads the gradients.
void fuse_update(Compiler& c);
/// A layer's gradients of weight and bias are computed by one kernel.
void fuse_bias_grad(Compiler& c);
void fuse_norm_grads(Compiler& c);
/// The gradients of input and weight of a dense layer with few input features are computed by one kernel.
void fuse_skinny_grads(Compiler& c);
/// Products with few columns of one large operand are computed by one kernel, as are the gradients of their weights.
void fuse_skinny_products(Compiler& c);
/// Chains of element-wise kernels become one kernel.
void fuse_elementwise(Compiler& c);
/// Gradients that are reduced are computed before those of their layers' inputs, unless other ranks wait for the
/// latter.
void order_gradients(Compiler& c);
/// Exchanges of statistics in the backward pass overlap with products that do not need them.
void overlap_statistics(Compiler& c);
/// Gradients that are reduced in pieces are computed in pieces, each right before its reduction.
void make_in_pieces(Compiler& c);
/// Levels 1 and 2: updates, and the gathers of weights that follow them, overlap with the rest of the backward
/// pass.
void update_early(Compiler& c);
/// Instructions that may share a launch are put together and marked.
void group_launches(Compiler& c);
/// Activations that wait for the backward pass are copied to the memory of the host, and back.
void offload_activations(Compiler& c);
/// Determines which instruction waits for which send, so that the sent buffer can be reused.
void order_sends(Compiler& c);
/// The output of an in-place op takes the buffer of an input whose lifetime ends there.
void reuse_buffers(Compiler& c);
/// An offset for each buffer, arena_bytes and Memory.
void place_buffers(Compiler& c);
/// Assigns each instruction its stream, the arena offsets of its operands, and the waits that order the streams. Fills
/// program.instructions.
void order_streams(Compiler& c);

}  // namespace trainctl
