"""Keras 3 on its torch backend: fit, evaluate, predict, convolutions, LSTM, attention, callbacks,
save and load, a training step of one's own.
"""

from __future__ import annotations

import os

import numpy as np

from tests.clients.inputs import folder, integers, numbers

PACKAGES = "keras"
TIME_LIMIT_S = 600


def keras_of():
    os.environ["KERAS_BACKEND"] = "torch"
    import keras

    return keras


def fill(model):
    """Weights by position and shape."""
    values = []
    for place, weight in enumerate(model.get_weights()):
        drawn = numbers(*weight.shape, seed=place) if weight.ndim else np.float32(1)
        values.append(drawn / 10 if weight.ndim > 1 else np.abs(drawn) / 10 + 0.5)
    model.set_weights(values)
    return model


def classifier(keras):
    layers = keras.layers
    return fill(
        keras.Sequential(
            [
                keras.Input((8,)),
                layers.Dense(16, activation="gelu"),
                layers.LayerNormalization(),
                layers.Dense(3),
            ]
        )
    )


def task_fit_evaluate_predict(torch):
    keras = keras_of()
    model = classifier(keras)
    model.compile(
        optimizer=keras.optimizers.AdamW(1e-2, weight_decay=0.01),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    x, y = numbers(40, 8), integers(3, 40)
    stop = keras.callbacks.EarlyStopping("val_loss", patience=3)
    found = model.fit(
        x, y, batch_size=8, epochs=3, shuffle=False, verbose=0, callbacks=[stop],
        validation_data=(x[:16], y[:16]),
    )  # fmt: skip
    path = folder() / "model.keras"
    model.save(path)
    loaded = keras.models.load_model(path)
    return {
        "history": found.history,
        "evaluated": model.evaluate(x, y, verbose=0),
        "predicted": model.predict(x, verbose=0),
        "loaded": loaded.predict(x, verbose=0),
    }


def task_pictures(torch):
    keras = keras_of()
    layers = keras.layers
    model = fill(
        keras.Sequential(
            [
                keras.Input((16, 16, 3)),
                layers.Conv2D(8, 3, padding="same", activation="relu"),
                layers.BatchNormalization(),
                layers.MaxPooling2D(),
                layers.DepthwiseConv2D(3, padding="same"),
                layers.Conv2DTranspose(4, 2, strides=2),
                layers.UpSampling2D(2, interpolation="bilinear"),
                layers.GlobalAveragePooling2D(),
                layers.Dense(4, activation="softmax"),
            ]
        )
    )
    model.compile("sgd", "categorical_crossentropy")
    x, y = numbers(16, 16, 16, 3), np.eye(4, dtype=np.float32)[integers(4, 16)]
    losses = model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0).history["loss"]
    return {"losses": losses, "predicted": model.predict(x, verbose=0)}


def task_sequences(torch):
    keras = keras_of()
    layers = keras.layers
    words = keras.Input((10,), dtype="int32")
    x = layers.Embedding(20, 16, mask_zero=True)(words)
    x = layers.Bidirectional(layers.LSTM(8, return_sequences=True))(x)
    x = layers.MultiHeadAttention(2, 8)(x, x) + x
    x = layers.GRU(8)(x)
    model = fill(keras.Model(words, layers.Dense(2)(x)))
    model.compile(
        keras.optimizers.Adam(1e-2), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    given, labels = integers(20, 12, 10, low=1), integers(2, 12)
    losses = model.fit(given, labels, 4, 2, shuffle=False, verbose=0).history["loss"]
    return {"losses": losses, "predicted": model.predict(given, verbose=0)}


def task_own_training_step(torch):
    keras = keras_of()
    model = classifier(keras)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    x, y = torch.tensor(numbers(16, 8)), torch.tensor(integers(3, 16))
    losses = []
    for _ in range(4):
        loss = loss_of(y, model(x))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"losses": losses, "count": model.count_params()}


def task_operations(torch):
    ops = keras_of().ops
    x = numbers(3, 4)
    return {
        "einsum": ops.einsum("ij,kj->ik", x, x),
        "softmax": ops.softmax(ops.convert_to_tensor(x)),
        "top": list(ops.top_k(x, 2)),
        "segments": ops.segment_sum(x, np.array([0, 0, 1])),
        "scan": ops.cumsum(x, axis=1),
        "where": ops.where(x > 0, x, 0.0),
        "solve": ops.solve(x[:, :3] + 3 * np.eye(3, dtype=np.float32), x),
        "image": ops.image.resize(numbers(1, 6, 6, 2), (4, 9), antialias=True),
        "fft": list(ops.fft((x, x * 0))),
    }
