module @jit_inner attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["fsdp"=4, "tp"=2]> {stablehlo.mesh = {axes = [{name = "fsdp", size = 4 : i64}, {name = "tp", size = 2 : i64}]}}
  func.func public @main(%arg0: tensor<8x64x128xbf16>, %arg1: tensor<8x128x256xbf16>, %arg2: tensor<8x256x128xbf16>) -> (tensor<8x64x128xbf16> {jax.result_info = "result"}) {
    %0 = sdy.manual_computation(%arg0, %arg1, %arg2) in_shardings=[<@mesh, [{}, {"fsdp"}, {}]>, <@mesh, [{"fsdp"}, {}, {"tp"}]>, <@mesh, [{"fsdp"}, {"tp"}, {}]>] out_shardings=[<@mesh, [{}, {"fsdp"}, {}]>] manual_axes={"fsdp", "tp"} (%arg3: tensor<8x16x128xbf16>, %arg4: tensor<2x128x128xbf16>, %arg5: tensor<2x128x128xbf16>) {
      %1 = "stablehlo.all_to_all"(%arg3) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, concat_dimension = 1 : i64, replica_groups = dense<[[0, 2, 4, 6], [1, 3, 5, 7]]> : tensor<2x4xi64>, split_count = 4 : i64, split_dimension = 0 : i64}> : (tensor<8x16x128xbf16>) -> tensor<2x64x128xbf16>
      %2 = stablehlo.dot_general %1, %arg4, batching_dims = [0] x [0], contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<2x64x128xbf16>, tensor<2x128x128xbf16>) -> tensor<2x64x128xbf16>
      %3 = func.call @relu(%2) : (tensor<2x64x128xbf16>) -> tensor<2x64x128xbf16>
      %4 = stablehlo.dot_general %3, %arg5, batching_dims = [0] x [0], contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<2x64x128xbf16>, tensor<2x128x128xbf16>) -> tensor<2x64x128xbf16>
      %5 = "stablehlo.reduce_scatter"(%4) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1], [2, 3], [4, 5], [6, 7]]> : tensor<4x2xi64>, scatter_dimension = 2 : i64, use_global_device_ids}> ({
      ^bb0(%arg6: tensor<bf16>, %arg7: tensor<bf16>):
        %10 = stablehlo.add %arg6, %arg7 : tensor<bf16>
        stablehlo.return %10 : tensor<bf16>
      }) : (tensor<2x64x128xbf16>) -> tensor<2x64x64xbf16>
      %cst = stablehlo.constant dense<0.000000e+00> : tensor<bf16>
      %6 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<bf16>) -> tensor<2x64x64xbf16>
      %c = stablehlo.constant dense<0> : tensor<i32>
      %7:3 = stablehlo.while(%iterArg = %c, %iterArg_0 = %5, %iterArg_1 = %6) : tensor<i32>, tensor<2x64x64xbf16>, tensor<2x64x64xbf16>
      cond {
        %c_2 = stablehlo.constant dense<4> : tensor<i32>
        %10 = stablehlo.compare LT, %iterArg, %c_2, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %10 : tensor<i1>
      } do {
        %10:2 = func.call @closed_call(%iterArg_0, %iterArg_1) : (tensor<2x64x64xbf16>, tensor<2x64x64xbf16>) -> (tensor<2x64x64xbf16>, tensor<2x64x64xbf16>)
        %c_2 = stablehlo.constant dense<1> : tensor<i32>
        %11 = stablehlo.add %iterArg, %c_2 : tensor<i32>
        stablehlo.return %11, %10#0, %10#1 : tensor<i32>, tensor<2x64x64xbf16>, tensor<2x64x64xbf16>
      }
      %8 = "stablehlo.all_gather"(%7#2) <{all_gather_dim = 2 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1], [2, 3], [4, 5], [6, 7]]> : tensor<4x2xi64>, use_global_device_ids}> : (tensor<2x64x64xbf16>) -> tensor<2x64x128xbf16>
      %9 = "stablehlo.all_to_all"(%8) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, concat_dimension = 0 : i64, replica_groups = dense<[[0, 2, 4, 6], [1, 3, 5, 7]]> : tensor<2x4xi64>, split_count = 4 : i64, split_dimension = 1 : i64}> : (tensor<2x64x128xbf16>) -> tensor<8x16x128xbf16>
      sdy.return %9 : tensor<8x16x128xbf16>
    } : (tensor<8x64x128xbf16>, tensor<8x128x256xbf16>, tensor<8x256x128xbf16>) -> tensor<8x64x128xbf16>
    return %0 : tensor<8x64x128xbf16>
  }
  func.func private @relu(%arg0: tensor<2x64x128xbf16>) -> tensor<2x64x128xbf16> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<bf16>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<bf16>) -> tensor<2x64x128xbf16>
    %1 = stablehlo.maximum %arg0, %0 : tensor<2x64x128xbf16>
    return %1 : tensor<2x64x128xbf16>
  }
  func.func private @closed_call(%arg0: tensor<2x64x64xbf16>, %arg1: tensor<2x64x64xbf16>) -> (tensor<2x64x64xbf16>, tensor<2x64x64xbf16>) {
    %0 = "stablehlo.collective_permute"(%arg0) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, source_target_pairs = dense<[[0, 2], [2, 4], [4, 6], [6, 0], [1, 3], [3, 5], [5, 7], [7, 1]]> : tensor<8x2xi64>}> : (tensor<2x64x64xbf16>) -> tensor<2x64x64xbf16>
    %1 = stablehlo.add %arg1, %arg0 : tensor<2x64x64xbf16>
    return %0, %1 : tensor<2x64x64xbf16>, tensor<2x64x64xbf16>
  }
}
