// The search of the manual runs in a worker. From file:// no browser starts one, so there it runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      this.inside = frame.contentWindow;
      this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.loaded = new Promise((resolve, reject) => {
        const script = this.inside.document.createElement("script");
        script.src = url;
        script.onload = resolve;
        script.onerror = reject;
        this.inside.document.body.appendChild(script);
      });
    }

    postMessage(data) {
      this.loaded.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
