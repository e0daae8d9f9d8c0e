// A training step of one dense layer on two replicas: five rounds of a loop, then a sum over both.
module @step attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 2 : i32} {
  func.func public @main(%weights: tensor<256x512xf32>, %features: tensor<100x256xf32>)
      -> (tensor<256x512xf32>, tensor<f32>) {
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %five = stablehlo.constant dense<5> : tensor<i32>
    %none = stablehlo.constant dense<0.0> : tensor<f32>
    %nothing = stablehlo.constant dense<0.0> : tensor<256x512xf32>
    %0:4 = stablehlo.while(%i = %zero, %sum = %nothing, %w = %weights, %x = %features)
        : tensor<i32>, tensor<256x512xf32>, tensor<256x512xf32>, tensor<100x256xf32>
    cond {
      %more = stablehlo.compare LT, %i, %five, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    } do {
      %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
          : (tensor<100x256xf32>, tensor<256x512xf32>) -> tensor<100x512xf32> loc("layer/dot"("own.py":12:0))
      %z = stablehlo.tanh %y : tensor<100x512xf32> loc("layer/tanh"("own.py":13:0))
      %g = stablehlo.dot_general %x, %z, contracting_dims = [0] x [0]
          : (tensor<100x256xf32>, tensor<100x512xf32>) -> tensor<256x512xf32> loc("layer/gradient"("own.py":14:0))
      %t = stablehlo.add %sum, %g : tensor<256x512xf32>
      %next = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %next, %t, %w, %x
          : tensor<i32>, tensor<256x512xf32>, tensor<256x512xf32>, tensor<100x256xf32>
    }
    %1 = "stablehlo.all_reduce"(%0#1) ({
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %c = stablehlo.add %a, %b : tensor<f32>
        stablehlo.return %c : tensor<f32>
    }) {replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}
        : (tensor<256x512xf32>) -> tensor<256x512xf32> loc("sum"("own.py":20:0))
    %2 = stablehlo.subtract %weights, %1 : tensor<256x512xf32> loc("update"("own.py":21:0))
    %3 = stablehlo.reduce(%2 init: %none) applies stablehlo.add across dimensions = [0, 1]
        : (tensor<256x512xf32>, tensor<f32>) -> tensor<f32> loc("loss"("own.py":22:0))
    return %2, %3 : tensor<256x512xf32>, tensor<f32>
  }
}
