"""Gradients, optimizers, mixed precision and graphs: training."""

from oneflow.api.row import ALL, Row, at, classes, row

ROWS: tuple[Row, ...] = (
    *at(
        "tensor.grad_mode",
        row("no_grad", "flow autograd"),
        row("enable_grad", "flow autograd"),
        row("set_grad_enabled", "flow autograd"),
        row("inference_mode", "flow autograd"),
        row("is_grad_enabled", "flow autograd"),
    ),
    *classes("graph.graph", "nn", "Graph", unknown="Graph"),
    *classes("optim.adafactor", "optim", "Adafactor"),
    *classes("optim.adam", "optim", "Adam AdamW Adamax LAMB NAdam RAdam", unknown="LAMB"),
    *classes("optim.adaptive", "optim", "Adadelta Adagrad RMSprop Rprop"),
    *classes("optim.lbfgs", "optim", "LBFGS"),
    *classes("optim.muon", "optim", "Muon"),
    *classes("optim.optimizer", "optim", "Optimizer ParamGroup", unknown="ParamGroup"),
    *classes("optim.sgd", "optim", "ASGD SGD"),
    *classes("autograd.api", "autograd", "backward grad"),
    *classes(
        "autograd.functional", "autograd", "hessian hvp jacobian jvp vhp vjp", unknown=ALL
    ),  # PyTorch has them in autograd.functional alone
    *classes(
        "autograd.function",
        "autograd",
        "Function FunctionCtx once_differentiable",
        unknown="FunctionCtx once_differentiable",
    ),
    *classes("utils.checkpoint", "utils.checkpoint", "checkpoint checkpoint_sequential"),
    *at(
        "amp.autocasting",
        row("autocast", "flow amp"),
        row("autocast_decorator", "flow amp", torch=None),
        row("is_autocast_enabled", "flow"),
        row("set_autocast_enabled", "flow"),
        row("get_autocast_gpu_dtype", "flow"),
        row("get_autocast_cpu_dtype", "flow"),
        row("set_autocast_gpu_dtype", "flow"),
        row("set_autocast_cpu_dtype", "flow"),
        row("is_autocast_cache_enabled", "flow"),
        row("set_autocast_cache_enabled", "flow"),
        row("clear_autocast_cache", "flow"),
    ),
    *classes("amp", "amp", "GradScaler StaticGradScaler", unknown="StaticGradScaler"),
    *classes(
        "distributions",
        "distributions",
        "Bernoulli Beta Binomial Categorical Cauchy Chi2 Dirichlet Distribution Exponential Gamma "
        "Geometric Gumbel HalfCauchy HalfNormal Independent Laplace LogNormal MixtureSameFamily "
        "Multinomial MultivariateNormal NegativeBinomial Normal OneHotCategorical "
        "OneHotCategoricalStraightThrough Pareto Poisson RelaxedBernoulli RelaxedOneHotCategorical "
        "StudentT TransformedDistribution Uniform Weibull AbsTransform AffineTransform "
        "CatTransform ComposeTransform ExpTransform IndependentTransform LowerCholeskyTransform "
        "PowerTransform ReshapeTransform SigmoidTransform SoftmaxTransform SoftplusTransform "
        "StickBreakingTransform TanhTransform Transform identity_transform kl_divergence "
        "register_kl",
    ),
    *classes(
        "compat.upstream.remat",
        "remat",
        "get_budget is_small_pieces_optimization_enabled parse_size set_budget "
        "set_small_pieces_optimization",
        unknown=ALL,
    ),
)
