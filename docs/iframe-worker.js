// Search from disk: a browser refuses workers of file: pages, so a hidden frame runs the worker's script.
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(address) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      this.inside = frame.contentWindow
      const load = source =>
        new Promise((resolve, reject) => {
          const script = this.inside.document.createElement("script")
          Object.assign(script, { src: source, onload: resolve, onerror: reject })
          this.inside.document.body.append(script)
        })
      this.inside.importScripts = (...sources) =>
        sources.reduce((before, source) => before.then(() => load(source)), Promise.resolve())
      this.inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      this.ready = load(new URL(address, location.href).href)
    }

    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })))
    }

    terminate() {
      this.inside.frameElement.remove()
    }
  }
}
