// The names that other tools (PyTorch, Keras, Hugging Face, Lightning, DeepSpeed, Megatron, MindSpore) have for what a
// job says.
#include "engine/spec/foreign_names.h"

#include <algorithm>

#include "engine/base/text.h"

namespace trainctl {
namespace {

std::span<const ForeignName> all_names() {
  using enum NameKind;
  static constexpr ForeignName kNames[] = {
      // Training.
      {field, "lr base_lr init_lr initial_lr step_size_lr eta alpha_lr", "optimizer.learning_rate",
       "optimizer: {learning_rate: 0.1}"},
      {field, "lr_scheduler scheduler lr_scheduler_type lr_schedule lr_decay_style learning_rate_schedule",
       "optimizer.learning_rate.type", "optimizer: {learning_rate: {type: cosine, base: 0.1}}"},
      {field, "warmup warmup_iters num_warmup_steps lr_warmup_iters warmup_steps",
       "optimizer.learning_rate.warmup_steps", "optimizer: {learning_rate: {base: 0.1, warmup_steps: 100}}"},
      {field, "warmup_ratio warmup_epochs lr_warmup_fraction", "optimizer.learning_rate.warmup_steps",
       "optimizer: {learning_rate: {base: 0.1, warmup_steps: 100}}", "warm-up is counted in steps"},
      {field, "min_lr eta_min lr_min", "optimizer.learning_rate.min",
       "optimizer: {learning_rate: {type: cosine, base: 0.1, min: 0.001}}"},
      {field, "optim optimiser", "optimizer.type", "optimizer: {type: adam}"},
      {field, "wd l2 l2_reg l2_regularization weight_decay", "optimizer.weight_decay",
       "optimizer: {type: adamw, weight_decay: 0.01}"},
      {field,
       "clip_grad clip_gradient max_grad_norm grad_clip gradient_clipping gradient_clip_val clip_grad_norm grad_norm",
       "optimizer.clip_norm", "optimizer: {clip_norm: 1.0}"},
      {field, "adam_beta1 adam_beta2 beta1 beta2", "optimizer.betas", "optimizer: {type: adam, betas: [0.9, 0.95]}"},
      {field, "adam_epsilon adam_eps epsilon", "optimizer.eps", "optimizer: {type: adam, eps: 1.0e-8}"},
      {field, "param_groups parameter_groups layer_decay", "optimizer.groups",
       "optimizer: {groups: [{parameters: ['*.bias'], weight_decay: 0}]}"},
      {field, "criterion loss_fn loss_function objective cost", "loss", "loss: softmax_cross_entropy"},
      {field, "fp8_recipe float8_recipe_name scaling_type", "fp8.recipe", "fp8: {recipe: delayed}",
       "block, tensor (current scaling) or delayed"},
      {field, "fp8_amax_history_len", "fp8.amax_history_len", "fp8: {recipe: delayed, amax_history_len: 1024}"},
      {field, "fp8_margin", "fp8.margin", "fp8: {recipe: delayed, margin: 0}"},
      {field, "fp8_amax_compute_algo", "fp8.amax_compute_algo", "fp8: {recipe: delayed, amax_compute_algo: max}"},
      {field, "fp8_format", "", "",
       "the recipe determines the format: E4M3 for all factors (block), or E4M3 and for gradients E5M2 (tensor, delayed: "
       "hybrid in Transformer Engine); omit the field"},
      {field, "label_smoothing_factor smoothing", "loss.label_smoothing",
       "loss: {type: softmax_cross_entropy, label_smoothing: 0.1}"},
      {field, "class_weights class_weight", "", "",
       "a loss has no weights of classes; draw the samples of rare classes more often with dataset.weights"},
      {field, "epoch num_epochs n_epochs max_epochs num_train_epochs nb_epoch", "train.epochs", "train: {epochs: 10}"},
      {field, "max_steps num_steps iterations iters max_iters train_iters num_iterations total_steps max_train_steps",
       "train.steps", "train: {steps: 1000}"},
      {field, "early_stopping early_stop early_stopping_patience patience", "train.stop_when",
       "train: {stop_when: {metric: loss, patience: 3}}", "the job needs a validation"},
      {field, "log_interval logging_steps print_freq log_every_n_steps log_freq", "train.log_every",
       "train: {log_every: 10}"},
      {field, "freeze_layers frozen requires_grad trainable freeze", "train.freeze", "train: {freeze: ['fc1.*']}"},
      {field, "checkpoint checkpointing save ckpt save_strategy", "train.checkpoint", "train: {checkpoint: auto}"},
      {field, "save_steps save_interval save_every checkpoint_interval every_n_train_steps save_freq",
       "train.checkpoint.every_steps", "train: {checkpoint: {every_steps: 500}}"},
      {field, "save_total_limit save_top_k keep_last max_to_keep keep_checkpoint_max", "train.checkpoint.keep",
       "train: {checkpoint: {keep: 2}}"},
      {field, "save_best save_best_only load_best_model_at_end metric_for_best_model monitor",
       "train.checkpoint.keep_best", "train: {checkpoint: {keep_best: accuracy}}"},
      {field, "save_dir ckpt_dir checkpoint_dir default_root_dir", "train.checkpoint.dir",
       "train: {checkpoint: {dir: checkpoints}}"},
      {field, "resume resume_from_checkpoint resume_from ckpt_path", "", "",
       "resume on the command line: trainctl run JOB.yaml --resume"},
      {field, "random_seed manual_seed random_state rng_seed", "seed", "seed: 1"},
      {field, "trainer training training_arguments training_args", "train", "train: {epochs: 10}"},
      {field, "metric compute_metrics", "metrics", "metrics: [accuracy]"},
      {field, "ema ema_decay swa average_weights", "optimizer.average",
       "optimizer: {average: {type: ema, decay: 0.999}}"},
      {field, "callbacks callback", "", "",
       "early stopping is train: {stop_when: {metric: loss, patience: 3}}, saving train: {checkpoint: auto}, and "
       "trackers are track: [mlflow]"},
      {field, "tqdm progress_bar verbose disable_tqdm", "", "", "remove it: run shows its progress"},
      {field, "val_split validation_split test_size val_size valid_size", "dataset.split",
       "dataset: {split: {train: 0.8, validation: 0.2}}"},
      {field, "report_to logger loggers tensorboard wandb mlflow trackers", "track", "track: [mlflow]",
       "one or more of tensorboard, mlflow, wandb and 'command: PROGRAM'"},
      // Data.
      {field, "batch_size bs b global_batch_size train_batch_size batchsize minibatch mini_batch_size", "dataset.batch",
       "dataset: {batch: 64}"},
      {field, "per_device_train_batch_size micro_batch_size train_micro_batch_size_per_gpu", "dataset.batch",
       "dataset: {batch: 64}", "the batch is that of all ranks and micro-batches together"},
      {field, "data train_data train_dataset datasets training_data train_set dataloader data_loader", "dataset",
       "dataset: {type: image_folder, path: photos/train}"},
      {field, "val valid eval val_data val_dataset eval_dataset validation_data test test_dataset", "validation",
       "validation: {dataset: {path: photos/val}}"},
      {field, "eval_steps val_check_interval eval_interval evaluation_strategy eval_strategy validation_freq",
       "validation.every_steps", "validation: {every_steps: 100}"},
      {field, "eval_batch_size per_device_eval_batch_size val_batch_size", "", "",
       "remove it: a validation uses dataset.batch"},
      {field, "data_dir data_path dataset_path root root_dir folder train_dir data_root directory", "dataset.path",
       "dataset: {path: FOLDER}"},
      {field, "num_classes n_classes nb_classes", "dataset.classes", "network: [{type: dense, units: 10}]",
       "the last dense layer has a unit per class; data sets of files need no number"},
      {field,
       "seq_len seq_length max_seq_length block_size context_length max_length sequence_length max_seq_len n_ctx",
       "dataset.length", "dataset: {length: 1024}"},
      {field, "image_size img_size input_size resize crop_size imgsz", "dataset.transforms",
       "dataset: {transforms: [{resize: [224, 224]}, to_float, hwc2chw]}"},
      {field, "transform augmentation augment preprocessing data_augmentation", "dataset.transforms",
       "dataset: {transforms: [to_float, hwc2chw]}"},
      {field, "data_workers num_loader_workers dataloader_num_workers num_parallel_workers", "dataset.workers",
       "dataset: {workers: 4}"},
      {field, "prefetch_factor prefetch_size", "dataset.prefetch", "dataset: {prefetch: 4}"},
      {field, "drop_remainder dataloader_drop_last", "dataset.drop_last", "dataset: {drop_last: true}"},
      {field, "shuffle_buffer shuffle_buffer_size buffer_size", "dataset.shuffle_block",
       "dataset: {shuffle_block: 1000}"},
      {field, "pin_memory persistent_workers sampler", "", "", "remove it: trainctl chooses this"},
      {field, "target target_column y_column label_column", "dataset.fields",
       "dataset: {type: csv, fields: {data: [a, b], label: c}}"},
      {field, "features feature_columns x_columns columns", "dataset.fields",
       "dataset: {type: csv, fields: {data: [a, b], label: c}}"},
      // The network.
      {field, "model layers net architecture backbone modules_list sequential", "network",
       "network: [{type: flatten}, {type: dense, units: 10}]"},
      {field, "pretrained model_name_or_path init_from weights_path load_from pretrained_model_name_or_path model_path",
       "weights.from", "weights: {from: FOLDER}"},
      {field, "lora peft lora_config", "adapters.lora", "adapters: {lora: {layers: ['*'], rank: 8}}"},
      {field, "lora_r lora_rank r", "adapters.lora.rank", "adapters: {lora: {layers: ['*'], rank: 8}}"},
      {field, "lora_alpha", "adapters.lora.alpha", "adapters: {lora: {layers: ['*'], alpha: 16}}"},
      {field, "target_modules", "adapters.lora.layers", "adapters: {lora: {layers: ['h.*.qkv']}}"},
      // Parallelism.
      {field,
       "pp pipeline_stages pipeline_parallel_size pipeline_model_parallel_size pp_size num_stages pipeline_parallel",
       "parallel.stages", "parallel: {stages: 2}"},
      {field,
       "tp tp_size tensor_parallel tensor_model_parallel_size tensor_parallel_size model_parallel model_parallel_size",
       "parallel.tensor", "parallel: {tensor: 2}"},
      {field, "cp cp_size context_parallel context_parallel_size sequence_parallel_size ulysses_degree",
       "parallel.context", "parallel: {context: 2}"},
      {field, "ep ep_size expert_parallel expert_model_parallel_size", "parallel.expert", "parallel: {expert: 2}"},
      {field, "dp_size data_parallel_size", "parallel.data", "parallel: {data: 2}"},
      {field, "dp ddp distributed strategy distributed_strategy", "parallel.mode", "parallel: {mode: data_parallel}"},
      {field,
       "gradient_accumulation_steps grad_accum accumulate_grad_batches num_micro_batches microbatches grad_acc_steps "
       "gradient_accumulation accumulation_steps",
       "parallel.micro_batches", "parallel: {micro_batches: 4}"},
      {field, "zero zero_stage zero_optimization fsdp sharding_strategy use_distributed_optimizer optimizer_sharding",
       "parallel.optimizer_shard.level", "parallel: {mode: data_parallel, optimizer_shard: {level: 1}}",
       "level 1, 2 and 3 are ZeRO's stages"},
      {field,
       "gradient_checkpointing activation_checkpointing recompute_activations recompute_granularity "
       "checkpoint_activations "
       "use_reentrant",
       "parallel.recompute", "parallel: {recompute: ['h.*']}"},
      {field, "offload cpu_offload offload_optimizer", "parallel.offload.optimizer",
       "parallel: {offload: {optimizer: host}}"},
      {field, "offload_activations cpu_checkpointing", "parallel.offload.activations",
       "parallel: {offload: {activations: ['h.*']}}"},
      {field, "offload_param", "", "",
       "offloading of weights is not supported; use parallel.offload for optimizer state and activations, or "
       "parallel.optimizer_shard: 3"},
      {field, "sequence_parallel", "", "", "remove it: the plan cuts rows where this saves memory"},
      {field, "half amp mixed_precision dtype torch_dtype use_amp autocast param_dtype bf16", "precision",
       "precision: bf16"},
      {field, "loss_scale loss_scaling grad_scaler gradscaler init_scale initial_scale_power loss_scale_window", "fp16",
       "precision: fp16 and fp16: {initial_scale: 65536}"},
      {field, "compile torch_compile jit xla", "", "", "remove it: every job is compiled"},
      // Launch.
      {field,
       "n np c nproc nprocs num_proc num_procs procs processes num_processes nproc_per_node ntasks ntasks_per_node "
       "npernode ppn ranks num_ranks nranks world_size worker_num local_worker_num num_workers workers num_gpus ngpus "
       "gpus "
       "gpus_per_node num_devices devices n_gpu n_gpus",
       "launch.ranks", "launch: {ranks: N}"},
      {field, "bind_to bind_core cpu_bind map_by", "launch.bind", "launch: {bind: core}"},
      {field, "hostfile machinefile", "launch.hostfile", "launch: {hostfile: FILE}"},
      {field, "logdir log_path output_dir output_filename log_output", "launch.log_dir", "launch: {log_dir: FOLDER}"},
      {field, "chdir wdir cwd", "working_dir", "working_dir: FOLDER"},
      {field, "restarts elastic_restarts", "launch.max_restarts", "launch: {max_restarts: 2}"},
      {field, "cluster_time_out timeout_seconds", "launch.timeout", "launch: {timeout: 30s}"},
      {field, "accelerator use_cpu cpu no_cuda", "launch.device", "launch: {device: cpu}"},
      {field, "use_cuda cuda gpu use_gpu", "launch.device", "launch: {device: cuda}"},
      {field, "nnodes num_nodes nodes", "launch.hosts", "launch: {hosts: [a, b]}"},
      {field, "script program main cmd entrypoint", "command", "command: [python3, train.py]"},
      // Layers.
      {layer, "linear fc fully_connected lin gemm inner_product dense_layer affine", "dense",
       "{type: dense, units: 10}"},
      {layer, "conv convolution conv2 conv_2d convolution2d conv_layer", "conv2d",
       "{type: conv2d, channels: 32, kernel: 3}"},
      {layer, "rnn", "", "", "this layer is not supported; a PyTorch script under `command` can use it"},
      {layer, "maxpool max_pool max_pool2 maxpooling2d maxpool2 max_pooling", "max_pool2d",
       "{type: max_pool2d, kernel: 2}"},
      {layer, "avgpool avg_pool average_pool averagepooling2d average_pooling mean_pool", "avg_pool2d",
       "{type: avg_pool2d, kernel: 2}"},
      {layer,
       "global_average_pooling2d gap global_pool global_avg_pool2d "
       "global_average_pool",
       "global_avg_pool", "{type: global_avg_pool}"},
      {layer, "adaptive_avg_pool adaptive_average_pooling2d", "adaptive_avg_pool2d",
       "{type: adaptive_avg_pool2d, size: 7}"},
      {layer, "adaptive_max_pool adaptive_max_pooling2d", "adaptive_max_pool2d",
       "{type: adaptive_max_pool2d, size: 7}"},
      {layer, "swish", "silu", "{type: silu}"},
      {layer, "gelu_new gelu_tanh fast_gelu", "gelu", "{type: gelu, approximate: tanh}"},
      {layer, "lrelu leakyrelu", "leaky_relu", "{type: leaky_relu}"},
      {layer, "relu6 glu celu", "", "", "this function is not supported; e.g. {type: silu}"},
      {layer, "log_softmax logsoftmax", "", "", "remove it: softmax_cross_entropy reads logits"},
      {layer, "batchnorm bn batch_norm2d batch_norm1d batch_normalization", "batch_norm", "{type: batch_norm}"},
      {layer, "layernorm ln layer_normalization", "layer_norm", "{type: layer_norm}"},
      {layer, "rmsnorm rms", "rms_norm", "{type: rms_norm}"},
      {layer, "groupnorm gn", "group_norm", "{type: group_norm, groups: 8}"},
      {layer, "embed token_embedding word_embedding lookup embedding_bag", "embedding",
       "{type: embedding, vocab: 1000, units: 64}"},
      {layer, "positional_embedding pos_embedding positional_encoding pos_embed learned_positions",
       "position_embedding", "{type: position_embedding, max_length: 1024}"},
      {layer, "rope rotary_embedding", "rotary", "{type: rotary, heads: 8}"},
      {layer, "multihead_attention mha self_attention scaled_dot_product_attention sdpa attn multi_head_attention",
       "attention", "{type: attention, heads: 8}", "a dense layer before it makes q, k and v: units: 3 * d"},
      {layer, "transformer transformer_block transformer_encoder_layer encoder_layer decoder_layer", "", "",
       "a block is a module of layers; trainctl init gpt2 writes one"},
      {layer, "cat concatenate stack", "concat", "{type: concat, inputs: [a, b]}"},
      {layer, "residual skip shortcut sum plus addition", "add", "{type: add, inputs: [a, b]}"},
      {layer, "multiply times hadamard", "mul", "{type: mul, inputs: [a, b]}"},
      {layer, "view", "reshape", "{type: reshape, shape: [64]}"},
      {layer, "permute swapaxes", "transpose", "{type: transpose, perm: [0, 2, 1]}"},
      {layer, "mean reduce_avg average", "reduce_mean", "{type: reduce_mean, dims: [-1]}"},
      {layer, "chunk", "split", "{type: split, parts: 2}"},
      {layer, "dropout1d dropout2d drop", "dropout", "{type: dropout, p: 0.1}"},
      {layer, "zeropad2d zero_padding2d", "pad", "{type: pad, dims: [2, 3], before: [1, 1], after: [1, 1]}"},
      {layer, "clamp", "clip", "{type: clip, min: 0, max: 1}"},
      {layer, "mixture_of_experts experts switch", "moe", "{type: moe, experts: 8, top_k: 2, hidden: 64}"},
      {layer, "input input_layer inputlayer", "", "", "remove it: the first layer reads the data"},
      {layer, "output output_layer", "dense", "{type: dense, units: 10}"},
      // Fields of layers.
      {layer_field,
       "out_features units_out hidden_size hidden_units num_units width output_dim out_dim neurons size dim_out",
       "units", "units: 10"},
      {layer_field, "out_channels filters num_filters n_filters", "channels", "channels: 32"},
      {layer_field, "in_features in_channels input_dim input_shape in_dim input_size in_features_size", "", "",
       "remove it: the size of the input follows from the layer before"},
      {layer_field, "kernel_size ksize pool_size window window_size filter_size", "kernel", "kernel: 3"},
      {layer_field, "strides", "stride", "stride: 2"},
      {layer_field, "height", "size", "size: [224, 224]"},
      {layer_field, "pad pad_mode", "padding", "padding: 1"},
      {layer_field, "num_heads n_head n_heads nhead num_attention_heads nheads", "heads", "heads: 8"},
      {layer_field, "num_kv_heads n_kv_heads num_key_value_heads", "kv_heads", "kv_heads: 2"},
      {layer_field, "is_causal causal_mask", "causal", "causal: true"},
      {layer_field, "attn_pdrop attention_dropout attention_probs_dropout_prob dropout_p attn_dropout", "dropout",
       "dropout: 0.1"},
      {layer_field, "attn_mask attn_bias additive_mask relative_position_bias", "score_bias", "score_bias: input",
       "the additive mask or bias is the last of the layer's inputs"},
      {layer_field, "num_embeddings vocab_size n_vocab", "vocab", "vocab: 1000"},
      {layer_field, "embedding_dim d_model embed_dim n_embd", "units", "units: 64"},
      {layer_field, "rate prob drop_rate dropout_rate keep_prob drop_prob", "p", "p: 0.1"},
      {layer_field, "epsilon", "eps", "eps: 1.0e-5"},
      {layer_field, "axis", "dim", "dim: -1"},
      {layer_field, "num_groups", "groups", "groups: 8"},
      {layer_field, "use_bias has_bias bias_enabled", "bias", "bias: false"},
      {layer_field, "elementwise_affine scale_and_center", "affine", "affine: true"},
      {layer_field, "activation act activation_fn nonlinearity", "", "",
       "an activation is a layer of its own: {type: relu}"},
      {layer_field, "weight_init kernel_initializer initializer", "init", "init: {type: normal, std: 0.02}"},
      {layer_field, "bias_initializer", "bias_init", "bias_init: zeros"},
      {layer_field, "input inputs_from from bottom", "inputs", "inputs: [a, b]"},
      {layer_field, "rope_theta theta", "base", "base: 500000"},
      {layer_field, "num_experts n_experts num_local_experts", "experts", "experts: 8"},
      {layer_field, "num_experts_per_tok k topk", "top_k", "top_k: 2"},
      // Losses.
      {loss,
       "cross_entropy ce crossentropy cross_entropy_loss crossentropyloss categorical_crossentropy "
       "sparse_categorical_crossentropy nll nll_loss nllloss softmax_loss softmax_ce logistic",
       "softmax_cross_entropy", "loss: softmax_cross_entropy",
       "it reads logits, so the network ends without a softmax"},
      {loss,
       "bce bce_loss bceloss bce_with_logits bcewithlogitsloss bce_with_logits_loss binary_crossentropy "
       "sigmoid_cross_entropy",
       "binary_cross_entropy", "loss: binary_cross_entropy", "it reads logits, so the network ends without a sigmoid"},
      {loss, "l1 l1_loss l1loss mean_absolute_error abs absolute_error", "mae", "loss: mae"},
      {loss, "l2 l2_loss mse_loss mseloss mean_squared_error squared_error rmse", "mse", "loss: mse"},
      {loss, "smooth_l1_loss smoothl1loss", "smooth_l1", "loss: smooth_l1"},
      {loss, "kldivloss kl_div_loss kullback_leibler kl_divergence", "kl_div", "loss: kl_div"},
      {loss, "hinge_loss", "hinge", "loss: hinge"},
      {loss, "triplet_loss triplet_margin_loss tripletmarginloss", "triplet",
       "loss: {type: triplet, inputs: [a, p, n]}"},
      {loss, "contrastive ntxent nt_xent infonce clip_loss", "info_nce", "loss: {type: info_nce, inputs: [q, k]}"},
      {loss, "cosineembeddingloss cosine_embedding_loss", "cosine_embedding",
       "loss: {type: cosine_embedding, inputs: [a, b]}"},
      {loss, "diceloss dice_loss soft_dice", "dice", "loss: dice"},
      {loss, "ctcloss ctc_loss", "ctc", "loss: {type: ctc, blank: 0}"},
      // Optimizers.
      {optimizer, "adamw_torch adamw_hf adamw_fused adam_w", "adamw", "optimizer: adamw"},
      {optimizer, "momentum nesterov sgd_momentum", "sgd", "optimizer: {type: sgd, momentum: 0.9}"},
      {optimizer, "ada_grad", "adagrad", "optimizer: adagrad"},
      {optimizer, "adadelta adamax radam", "", "", "this optimizer is not supported; e.g. optimizer: adamw"},
      // Metrics.
      {metric, "acc categorical_accuracy sparse_categorical_accuracy top1 top_1", "accuracy", "metrics: [accuracy]"},
      {metric, "topk top_k_accuracy top5_accuracy", "top_k", "metrics: [{type: top_k, k: 5}]"},
      {metric, "f1 f1_score precision recall auc roc_auc confusion_matrix mae rmse r2 perplexity", "", "",
       "trainctl evaluate computes it after the training; train.stop_when can use the loss"},
      // Data sets.
      {dataset, "imagefolder folder images image_directory image_folder_dataset directory", "image_folder",
       "dataset: {type: image_folder, path: photos/train}"},
      {dataset, "webdataset wds shards", "tar", "dataset: {type: tar, path: 'shards/*.tar'}"},
      {dataset, "tsv pandas excel xlsx", "csv",
       "dataset: {type: csv, path: table.csv, fields: {data: [a, b], label: c}}"},
      {dataset, "audiofolder audio wav flac sound speech", "audio_folder",
       "dataset: {type: audio_folder, path: clips, length: 16000}"},
      {dataset, "numpy np arrays", "npy", "dataset: {type: npy, path: FOLDER, fields: {data: x.npy, label: y.npy}}"},
      {dataset, "bin token_file pretraining megatron", "tokens",
       "dataset: {type: tokens, path: 'data/*.bin', length: 1024}"},
      {dataset, "txt text_file language_modeling", "text", "dataset: {type: text, path: 'data/*.txt', length: 256}"},
      {dataset, "conversations instruct sft messages alpaca sharegpt", "chat",
       "dataset: {type: chat, path: talks.jsonl, tokenizer: FOLDER, length: 1024}"},
      {dataset, "dpo pairs", "preference",
       "dataset: {type: preference, path: pairs.jsonl, tokenizer: FOLDER, length: 512}"},
      {dataset, "idx digits fashion_mnist fashionmnist emnist kmnist", "mnist", "dataset: {type: mnist, path: FOLDER}"},
      {dataset, "cifar", "cifar10", "dataset: {type: cifar10, path: FOLDER}"},
      {dataset, "fake synthetic dummy fake_data", "random", "dataset: {type: random, shape: [28, 28, 1], classes: 10}"},
      {dataset, "mixture blend blended interleave interleaved weighted concat", "mix",
       "dataset: {type: mix, sources: {web: {type: text, path: web.txt, length: 256}}, mix: {web: 1}}"},
      {dataset, "imagenet", "image_folder", "dataset: {type: image_folder, path: imagenet/train}"},
      {dataset, "json jsonl", "table", "dataset: {type: table, path: rows.jsonl, fields: {data: [a, b], label: c}}",
       "type text reads texts of JSON Lines"},
      {dataset,
       "tabular dataframe parquet arrow feather hdf5 h5 tfrecord lmdb mds mosaic streaming hf huggingface datasets",
       "table", "dataset: {type: table, path: 'data/*.parquet', fields: {data: [a, b], label: c}}"},
      // Transforms.
      {transform, "to_tensor totensor to_pil_image", "to_float", "transforms: [to_float, hwc2chw]"},
      {transform, "scale divide div rescaling", "rescale", "transforms: [{rescale: {scale: 0.00392156862745098}}]"},
      {transform, "normalise normalization standardize mean_std", "normalize",
       "transforms: [{normalize: {mean: [0.5], std: [0.5]}}]"},
      {transform, "random_horizontal_flip randomhorizontalflip hflip flip random_flip fliplr", "horizontal_flip",
       "transforms: [horizontal_flip]"},
      {transform, "crop", "center_crop", "transforms: [{center_crop: [224, 224]}]"},
      {transform, "jitter colorjitter", "color_jitter", "transforms: [{color_jitter: {brightness: 0.2}}]"},
      {transform, "cutout erase", "random_erasing", "transforms: [random_erasing]"},
      {transform, "permute chw channels_first to_chw", "hwc2chw", "transforms: [hwc2chw]"},
      {transform, "cast astype float", "to_float", "transforms: [to_float]"},
      {transform, "randomresizedcrop rrc", "random_resized_crop", "transforms: [{random_resized_crop: [224, 224]}]"},
      // Values.
      {value, "gpu nvidia", "cuda", "cuda"},
      {value, "mixed bf16_mixed bfloat16 amp", "bf16", "bf16", "mixed precision is bf16"},
      {value, "float16 half mixed_fp16 f16 16 16_mixed", "fp16", "fp16"},
      {value, "mxfp8 mxfp4 mxfp6", "fp8", "fp8",
       "microscaling formats need cards with compute capability 10 or higher (B200, GB200, B300, RTX 50), whose "
       "products are not supported; fp8 multiplies E4M3 factors on Hopper (H100, H200)"},
      {value, "nvfp4 fp4", "fp8", "fp8",
       "nvfp4 needs cards with compute capability 10 or higher (B200, GB200, B300, RTX 50), whose products are not "
       "supported; fp8 multiplies E4M3 factors on Hopper (H100, H200)"},
      {value, "float32 float f32 32 full", "fp32", "fp32"},
      {value, "float8 e4m3 8bit hybrid", "fp8", "fp8"},
      {value, "tensorwise current per_tensor current_scaling float8currentscaling", "tensor", "tensor"},
      {value, "delayedscaling delayed_scaling", "delayed", "delayed"},
      {value, "blockwise deepseek block_scaling float8blockscaling", "block", "block"},
      {value, "cosine_annealing cosineannealinglr cosine_decay cosine_with_warmup", "cosine", "cosine"},
      {value, "step_lr steplr multistep_lr", "step", "step"},
      {value, "ddp dp distributed", "data_parallel", "data_parallel"},
      {value, "fsdp zero hsdp zero3 fsdp2 full_shard", "data_parallel", "data_parallel",
       "optimizer_shard: {level: 3} beside it cuts weights, gradients and optimizer state over the ranks"},
      {value, "tp pp tensor_parallel auto", "auto_parallel", "auto_parallel"},
      {value, "single none_parallel", "stand_alone", "stand_alone"},
      {value, "k8s kube eks gke aks", "kubernetes", "kubernetes"},
      {value, "sbatch srun", "slurm", "slurm"},
      {value, "docker docker_compose", "compose", "compose"},
      {value, "ssh local localhost", "hosts", "hosts"},
      {value, "valid", "0", "0"},
      {value, "int64 long int", "i32", "i32"},
      {value, "xavier xavier_uniform glorot glorot_uniform", "xavier_uniform", "xavier_uniform"},
      {value, "he kaiming kaiming_uniform he_uniform", "kaiming_uniform", "kaiming_uniform"},
  };
  return kNames;
}

/// Without case, '_', '-' and the module in front: "nn.BatchNorm2d" is "batchnorm2d".
std::string plain(std::string_view name) {
  if (const size_t dot = name.rfind('.'); dot != std::string_view::npos) name.remove_prefix(dot + 1);
  std::string text;
  for (const char c : name)
    if (c != '_' && c != '-' && c != ' ') text += lower_case(c);
  return text;
}

bool has_name(const ForeignName& entry, const std::string& name) {
  std::string_view rest = entry.names;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find(' '), rest.size());
    if (plain(rest.substr(0, end)) == name) return true;
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return false;
}

}  // namespace

std::string_view to_string(NameKind kind) {
  static constexpr std::string_view kKinds[] = {"field",  "layer",    "layer field", "loss", "optimizer",
                                                "metric", "data set", "transform",   "value"};
  return kKinds[static_cast<size_t>(kind)];
}

std::span<const ForeignName> foreign_names() { return all_names(); }

const ForeignName* find_foreign(NameKind kind, std::string_view name) {
  const std::string wanted = plain(name);
  if (wanted.empty()) return nullptr;
  for (const ForeignName& entry : all_names())
    if (entry.kind == kind && has_name(entry, wanted)) return &entry;
  return nullptr;
}

std::vector<const ForeignName*> find_foreign(std::string_view name) {
  std::vector<const ForeignName*> found;
  const std::string wanted = plain(name);
  for (const ForeignName& entry : all_names())
    if (!wanted.empty() && has_name(entry, wanted)) found.push_back(&entry);
  return found;
}

std::string hint_of(const ForeignName& name) {
  if (name.example.empty()) return std::string(name.note);
  return "write " + std::string(name.example) + (name.note.empty() ? "" : "; " + std::string(name.note));
}

std::string foreign_hint(NameKind kind, std::string_view name) {
  const ForeignName* found = find_foreign(kind, name);
  return found == nullptr ? "" : hint_of(*found);
}

std::vector<std::string> accepted_synonyms(const Field& field) {
  if (field.name == "device") return {"gpu"};
  return {};
}

std::string accepted_synonym(const Field& field, const std::string& word) {
  for (const std::string& synonym : accepted_synonyms(field))
    if (word == synonym) return std::string(find_foreign(NameKind::value, word)->ours);
  return "";
}

}  // namespace trainctl
